#include "gpu_worker/device/conformance_memory.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

constexpr std::byte kPattern{0xFF};
constexpr int64_t kGuardBytes = 256;  // a few vectors of any processor, and what a warp writes at once

}  // namespace

ConformanceMemory::~ConformanceMemory() {
  for (const Guard& guard : guards_) {
    std::vector<std::byte> bytes(static_cast<size_t>(guard.num_bytes));
    device_.stream(StreamId::kCompute).CopyOut(absl::MakeSpan(bytes), guard.begin);
    if (!device_.stream(StreamId::kCompute).Synchronize().ok()) return;  // the test has seen why
    const auto written = std::find_if(bytes.begin(), bytes.end(), [](std::byte byte) { return byte != kPattern; });
    EXPECT_TRUE(written == bytes.end()) << "byte " << written - bytes.begin() << " behind piece "
                                        << &guard - guards_.data() << " was written";
  }
}

void* ConformanceMemory::Alloc(int64_t num_bytes) {
  const int64_t rounded = (num_bytes + kGuardBytes + kArenaAlignBytes - 1) / kArenaAlignBytes * kArenaAlignBytes;
  const std::vector<std::byte> pattern(static_cast<size_t>(rounded), kPattern);
  const absl::StatusOr<void*> address = device_.Address({used_bytes_, rounded});
  EXPECT_OK(address);
  if (!address.ok()) std::abort();  // a test that asks for too much; nothing could go on
  used_bytes_ += rounded;
  device_.stream(StreamId::kCompute).CopyIn(*address, pattern);
  EXPECT_OK(device_.stream(StreamId::kCompute).Synchronize());
  guards_.push_back({static_cast<const std::byte*>(*address) + num_bytes, rounded - num_bytes});
  return *address;
}

void ConformanceMemory::SetBytes(void* to, absl::Span<const std::byte> bytes) {
  device_.stream(StreamId::kCompute).CopyIn(to, bytes);
  EXPECT_OK(device_.stream(StreamId::kCompute).Synchronize());
}

void ConformanceMemory::GetBytes(absl::Span<std::byte> bytes, const void* from) {
  device_.stream(StreamId::kCompute).CopyOut(bytes, from);
  EXPECT_OK(device_.stream(StreamId::kCompute).Synchronize());
}

void* ConformanceMemory::AllocAct(int64_t n) { return Alloc(n * SizeOf(act())); }

void* ConformanceMemory::PutAct(const reference::Array& values) {
  void* to = AllocAct(static_cast<int64_t>(values.size()));
  SetAct(to, values);
  return to;
}

void ConformanceMemory::SetAct(void* to, const reference::Array& values) {
  if (act() == Dtype::kF32) {
    Set(to, std::vector<float>(values.begin(), values.end()));
  } else {
    Set(to, ToBits(values, act()));
  }
}

reference::Array ConformanceMemory::GetAct(const void* from, int64_t n) {
  if (act() == Dtype::kF32) return GetF32(from, n);
  reference::Array values;
  for (const uint16_t bits : Get<uint16_t>(from, n)) {
    values.push_back(act() == Dtype::kBf16 ? ToFloat(Bf16{bits}) : ToFloat(Fp16{bits}));
  }
  return values;
}

float* ConformanceMemory::PutF32(const reference::Array& values) {
  return Put(std::vector<float>(values.begin(), values.end()));
}

reference::Array ConformanceMemory::GetF32(const void* from, int64_t n) {
  const std::vector<float> values = Get<float>(from, n);
  return reference::Array(values.begin(), values.end());
}

std::vector<uint16_t> ToBits(const reference::Array& values, Dtype dtype) {
  std::vector<uint16_t> bits;
  for (const double v : values) {
    const auto value = static_cast<float>(v);
    bits.push_back(dtype == Dtype::kBf16 ? ToBf16(value).bits : ToFp16(value).bits);
  }
  return bits;
}

reference::Array RandomArray(std::mt19937& random, int64_t n, double range) {
  std::uniform_real_distribution<double> uniform(-range, range);
  reference::Array values(static_cast<size_t>(n));
  for (double& v : values) v = ToFloat(ToFp16(ToFloat(ToBf16(static_cast<float>(uniform(random))))));
  return values;
}

void ExpectNear(const reference::Array& got, const reference::Array& want, const reference::Array& tolerance,
                const char* what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  int failures = 0;
  for (size_t i = 0; i < got.size() && failures < 5; ++i) {
    if (!(std::abs(got[i] - want[i]) <= tolerance[i])) {
      ADD_FAILURE() << what << "[" << i << "] of " << got.size() << " is " << got[i] << ", not " << want[i] << " +- "
                    << tolerance[i];
      ++failures;
    }
  }
}

void ExpectNear(const reference::Array& got, const reference::Array& want, double absolute, double relative,
                const char* what) {
  reference::Array tolerance;
  for (const double v : want) tolerance.push_back(absolute + relative * std::abs(v));
  ExpectNear(got, want, tolerance, what);
}

double Dot(const reference::Array& a, const reference::Array& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

}  // namespace eps::worker
