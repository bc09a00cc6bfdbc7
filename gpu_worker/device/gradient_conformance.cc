// What happens to weights and gradients between the wire and the kernels: exact, to the bit.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/mx_int8.h"
#include "common/numeric/nf4.h"
#include "common/numeric/quantized.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/conformance_cases.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using conformance::Array;

constexpr int64_t kWireElems = 65536 + 4099;

std::vector<float> SomeFloats(uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(kWireElems);
  for (float& v : values) v = normal(random);
  values[0] = 0.0f, values[1] = -0.0f, values[2] = 1e30f, values[3] = -3e-30f, values[4] = 7e-6f;
  return values;
}

std::vector<uint32_t> BitsOf(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (const float v : values) bits.push_back(std::bit_cast<uint32_t>(v));
  return bits;
}
uint16_t BitsOf(float value, Dtype dtype) { return ToBits({value}, dtype)[0]; }
float Rounded(float value, Dtype dtype) {
  return dtype == Dtype::kBf16 ? ToFloat(ToBf16(value)) : ToFloat(ToFp16(value));
}

TEST_P(DeviceConformanceTest, WidenIsExact) {
  ConformanceMemory memory(device());
  const std::vector<float> values = SomeFloats(1);
  void* dst = memory.AllocAct(kWireElems);
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF16}) {
    if (memory.act() != Dtype::kF32 && memory.act() != wire) continue;  // a device of 16 bits has the wire's dtype
    std::vector<uint16_t> bits;
    Array want;
    for (const float v : values) {
      bits.push_back(BitsOf(v, wire));
      want.push_back(Rounded(v, wire));
    }
    device().kernels().Widen({.n = kWireElems, .src = memory.Put(bits), .src_dtype = wire, .dst = dst});
    EXPECT_TRUE(memory.GetAct(dst, kWireElems) == want) << DtypeName(wire);
  }
  const float* from = memory.Put(values);
  device().kernels().Widen({.n = kWireElems, .src = from, .src_dtype = Dtype::kF32, .dst = dst});
  if (memory.act() == Dtype::kF32) {
    EXPECT_TRUE(memory.Get<float>(dst, kWireElems) == values);
  }
}

// Lengths of arrays: of all kinds of last runs.
constexpr int64_t kQuantizedLengths[] = {64, 192, kQuantizedRunElems, 2 * kQuantizedRunElems + 320};

// What lies behind the values stays as it is.
void ExpectDequantized(Device& device, QuantizedFormat format, const std::vector<uint8_t>& bytes, Array want) {
  ConformanceMemory memory(device);
  const auto n = static_cast<int64_t>(want.size());
  void* dst = memory.AllocAct(n + 8);
  device.kernels().FillZero({.num_bytes = (n + 8) * SizeOf(memory.act()), .dst = dst});
  device.kernels().Dequantize({.n = n, .format = format, .src = memory.Put(bytes), .dst = dst});
  want.insert(want.end(), 8, 0.0);
  EXPECT_TRUE(memory.GetAct(dst, n + 8) == want);
}

TEST_P(DeviceConformanceTest, DequantizeOfMxInt8IsExact) {
  for (const int64_t n : kQuantizedLengths) {
    SCOPED_TRACE(n);
    std::mt19937 random(static_cast<uint32_t>(n));
    std::vector<uint8_t> bytes(static_cast<size_t>(MxInt8Bytes(n)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    // Exponents of which any code is a number that the device holds, and some blocks of zeros, whatever their codes
    // are.
    const bool is_fp16 = ConformanceMemory(device()).act() == Dtype::kF16;
    Array want;
    for (int64_t block = 0; block < n; block += kMxBlockElems) {
      const MxInt8Place at = MxInt8Place::Of(block, n);
      uint8_t& exponent = bytes[static_cast<size_t>(at.exponent)];
      exponent = static_cast<uint8_t>(is_fp16 ? 110 + exponent % 30 : exponent % 254);  // of 254, -128 were infinite
      if (block % (7 * kMxBlockElems) == 0) exponent = static_cast<uint8_t>(random() % 7);
      for (int64_t i = 0; i < kMxBlockElems; ++i) {
        const auto code = static_cast<int8_t>(bytes[static_cast<size_t>(at.codes + i)]);
        want.push_back(exponent < 7 ? 0 : std::ldexp(code, exponent - 133));
      }
    }
    ExpectDequantized(device(), QuantizedFormat::kMxInt8, bytes, std::move(want));
  }
}

TEST_P(DeviceConformanceTest, DequantizeOfNf4GivesTheBf16ThatTheFormatSays) {
  for (const int64_t n : kQuantizedLengths) {
    SCOPED_TRACE(n);
    std::mt19937 random(static_cast<uint32_t>(n));
    std::vector<uint8_t> bytes(static_cast<size_t>(Nf4Bytes(n)));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    const bool is_fp16 = ConformanceMemory(device()).act() == Dtype::kF16;
    Array want;
    for (int64_t block = 0; block < n; block += kNf4BlockElems) {
      const Nf4Place at = Nf4Place::Of(block, n);
      // Scales from the smallest to the largest that there are, and some of 0; with fp16 those of which it holds each
      // value.
      const uint32_t exponent = is_fp16 ? 127 - 7 + random() % 20 : 7 + random() % 248;
      Bf16 scale = {static_cast<uint16_t>(exponent << 7 | random() % 128)};
      if (block % (7 * kNf4BlockElems) == 0) scale.bits = 0;
      std::memcpy(&bytes[static_cast<size_t>(at.scale)], &scale.bits, sizeof(scale.bits));
      for (int64_t i = 0; i < kNf4BlockElems; ++i) {
        const uint8_t both = bytes[static_cast<size_t>(at.codes + i / 2)];
        // To 8 significant bits, ties to even. The product is one of fp32.
        const auto product = static_cast<double>(Nf4Number(i % 2 == 0 ? both & 15 : both >> 4) * ToFloat(scale));
        int binary_exponent = 0;
        const double fraction = std::frexp(product, &binary_exponent);
        want.push_back(std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), binary_exponent - 8));
      }
    }
    ExpectDequantized(device(), QuantizedFormat::kNf4, bytes, std::move(want));
  }
}

// To nearest, ties to even, of any number; a NaN stays one.
uint16_t NearestEven(float value, Dtype dtype) {
  if (dtype == Dtype::kF16) return ToFp16(value).bits;
  const uint32_t bits = std::bit_cast<uint32_t>(value), low = bits & 0xFFFF, high = bits >> 16;
  const bool up = low > 0x8000 || (low == 0x8000 && high % 2 == 1);
  return std::isnan(value) ? 0x7FFF : static_cast<uint16_t>(high + (up ? 1 : 0));
}
bool IsNan(uint16_t bits, Dtype dtype) { return (bits & 0x7FFF) > (dtype == Dtype::kBf16 ? 0x7F80 : 0x7C00); }

TEST_P(DeviceConformanceTest, ActivationsOf16BitsAreRoundedToNearestTiesToEven) {
  ConformanceMemory memory(device());
  const Dtype act = memory.act();
  if (act == Dtype::kF32) GTEST_SKIP() << "this device computes in fp32";
  // Numbers of all magnitudes, denormal and beyond the largest, and of each third one the ties and what is next to
  // them.
  std::mt19937 random(8);
  const uint32_t cut = act == Dtype::kBf16 ? 16 : 13, tie = 1u << (cut - 1);
  std::vector<float> values(kWireElems);
  for (int64_t i = 0; i < kWireElems; ++i) {
    uint32_t bits = random();
    if (i % 3 == 0) bits = (bits >> cut << cut) | (tie - 1 + static_cast<uint32_t>(i / 3 % 3));
    if (act == Dtype::kF16 && i % 2 == 0) bits = (bits & 0x8FFFFFFF) | 0x30000000;  // below 2: most are too large
    values[i] = std::bit_cast<float>(bits);
  }
  values[0] = std::numeric_limits<float>::infinity(), values[1] = -std::numeric_limits<float>::infinity();
  values[2] = std::numeric_limits<float>::quiet_NaN(), values[3] = -0.0f, values[4] = std::numeric_limits<float>::max();
  void* dst = memory.AllocAct(kWireElems);
  device().kernels().Widen({.n = kWireElems, .src = memory.Put(values), .src_dtype = Dtype::kF32, .dst = dst});
  const std::vector<uint16_t> got = memory.Get<uint16_t>(dst, kWireElems);
  for (int64_t i = 0; i < kWireElems; ++i) {
    const uint16_t want = NearestEven(values[i], act);
    ASSERT_EQ(IsNan(got[i], act), IsNan(want, act)) << values[i] << " at " << i;
    if (IsNan(want, act)) continue;
    ASSERT_EQ(got[i], want) << values[i] << " at " << i;
  }
}

TEST_P(DeviceConformanceTest, FinishLeafRoundsOnceAndEmitKeepsIt) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF16}) {
    SCOPED_TRACE(DtypeName(dtype));
    ConformanceMemory memory(device());
    const std::vector<float> values = SomeFloats(2);
    float* src = memory.Put(values);
    int32_t* finite = memory.Put(std::vector<int32_t>{1});
    void* wire = memory.Alloc(kWireElems * 2);
    void* wide = memory.Alloc(kWireElems * 4);
    device().kernels().FinishLeaf({.n = kWireElems, .src = src, .round_to = dtype, .finite = finite});
    device().kernels().EmitGradient({.n = kWireElems, .src = src, .dst_dtype = dtype, .dst = wire});
    device().kernels().EmitGradient({.n = kWireElems, .src = src, .dst_dtype = Dtype::kF32, .dst = wide});
    const std::vector<float> rounded = memory.Get<float>(src, kWireElems);
    const std::vector<uint16_t> bits = memory.Get<uint16_t>(wire, kWireElems);
    for (int64_t i = 0; i < kWireElems; ++i) {
      ASSERT_EQ(rounded[i], Rounded(values[i], dtype)) << i;
      ASSERT_EQ(bits[i], BitsOf(values[i], dtype)) << i;
    }
    EXPECT_TRUE(memory.Get<float>(wide, kWireElems) == rounded);
    EXPECT_EQ(memory.Get<int32_t>(finite, 1)[0], 1);
  }
}

// To the bit, also of what is not finite, or not normal: a leaf that is pushed alone is what it would be otherwise.
TEST_P(DeviceConformanceTest, FinishLeafIntoADestinationGivesWhatEmitWouldAfterIt) {
  std::vector<float> values = SomeFloats(7);
  for (const size_t at : {size_t{1000}, values.size() - 6}) {
    values[at] = std::numeric_limits<float>::infinity(), values[at + 1] = -std::numeric_limits<float>::infinity();
    values[at + 2] = std::numeric_limits<float>::quiet_NaN(), values[at + 3] = 65520.0f, values[at + 4] = 2e-8f;
    values[at + 5] = 3e-41f;
  }
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    SCOPED_TRACE(DtypeName(dtype));
    ConformanceMemory memory(device());
    float *src = memory.Put(values), *emitted = memory.Put(values);
    int32_t* finite = memory.Put(std::vector<int32_t>{1, 1});
    const int64_t num_bytes = kWireElems * SizeOf(dtype);
    void *dst = memory.Alloc(num_bytes), *want = memory.Alloc(num_bytes);
    device().kernels().FinishLeaf({.n = kWireElems, .src = src, .round_to = dtype, .dst = dst, .finite = finite});
    device().kernels().FinishLeaf({.n = kWireElems, .src = emitted, .round_to = dtype, .finite = finite + 1});
    device().kernels().EmitGradient({.n = kWireElems, .src = emitted, .dst_dtype = dtype, .dst = want});
    EXPECT_TRUE(memory.Get<uint8_t>(dst, num_bytes) == memory.Get<uint8_t>(want, num_bytes));
    EXPECT_TRUE(BitsOf(memory.Get<float>(src, kWireElems)) == BitsOf(values)) << "the source changed";
    EXPECT_EQ(memory.Get<int32_t>(finite, 2), std::vector<int32_t>(2, 0));
  }
}

TEST_P(DeviceConformanceTest, FinishLeafSeesEveryElementThatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    for (const int64_t at : {int64_t{0}, int64_t{70}, kWireElems - 1}) {
      for (const Dtype round_to : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
        ConformanceMemory memory(device());
        std::vector<float> values = SomeFloats(3);
        values[at] = bad;
        int32_t* finite = memory.Put(std::vector<int32_t>{1});
        device().kernels().FinishLeaf(
            {.n = kWireElems, .src = memory.Put(values), .round_to = round_to, .finite = finite});
        EXPECT_EQ(memory.Get<int32_t>(finite, 1)[0], 0) << bad << " at " << at;
      }
    }
  }
  ConformanceMemory memory(device());
  int32_t* finite = memory.Put(std::vector<int32_t>{0});
  device().kernels().FinishLeaf({.n = 5, .src = memory.Put(SomeFloats(4)), .finite = finite});
  EXPECT_EQ(memory.Get<int32_t>(finite, 1)[0], 0) << "a flag that is down stays down";
}

TEST_P(DeviceConformanceTest, AddGradientAndFillZero) {
  ConformanceMemory memory(device());
  const std::vector<float> left = SomeFloats(5), right = SomeFloats(6);
  float* dst = memory.Put(left);
  device().kernels().AddGradient({.n = kWireElems, .dst = dst, .src = memory.Put(right)});
  const std::vector<float> sum = memory.Get<float>(dst, kWireElems);
  for (int64_t i = 0; i < kWireElems; ++i) ASSERT_EQ(sum[i], left[i] + right[i]) << i;
  device().kernels().FillZero({.num_bytes = kWireElems * 4 - 4, .dst = dst});
  const std::vector<float> zero = memory.Get<float>(dst, kWireElems);
  for (int64_t i = 0; i + 1 < kWireElems; ++i) ASSERT_EQ(zero[i], 0.0f) << i;
  EXPECT_EQ(zero.back(), sum.back()) << "FillZero wrote behind its end";
}

}  // namespace
}  // namespace eps::worker
