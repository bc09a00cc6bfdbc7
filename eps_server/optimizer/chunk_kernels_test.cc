#include "eps_server/optimizer/chunk_kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/fp8_block.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/moment_rounding.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace eps::server {
namespace {

constexpr int64_t kElems = 5 * 1024 + 64;  // blocks and a part of one

std::vector<float> Normal(int64_t count, uint64_t seed, double scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

// Leaves or subtree sums over `nodes`, and the program that adds them.
struct Gradient {
  Gradient(const std::vector<TreeNode>& nodes, int num_vnodes, Dtype leaves, uint64_t seed, double scale = 1e-2) {
    for (const TreeNode node : nodes) {
      f32.push_back(Normal(kElems, seed + node.first, scale));
      bits.emplace_back();
      dtypes.push_back(node.is_leaf() ? leaves : Dtype::kF32);
      for (float& value : f32.back()) {
        if (dtypes.back() == Dtype::kBf16) {
          bits.back().push_back(ToBf16(value).bits);
          value = ToFloat(ToBf16(value));
        } else if (dtypes.back() == Dtype::kF16) {
          bits.back().push_back(ToFp16(value).bits);
          value = ToFloat(ToFp16(value));
        }
      }
    }
    for (size_t i = 0; i < nodes.size(); ++i) {
      const void* values = dtypes[i] != Dtype::kF32 ? static_cast<const void*>(bits[i].data()) : f32[i].data();
      gradient.operands.push_back({dtypes[i], static_cast<const std::byte*>(values), nodes[i], 0});
    }
    gradient.program = SumProgram(nodes, num_vnodes);
  }
  // The program as it is defined, element by element.
  float SumAt(int64_t i) const {
    std::vector<float> stack;
    for (const SumOp& op : gradient.program) {
      if (op.kind == SumOp::Kind::kLoad) {
        stack.push_back(f32[op.operand][i]);
      } else {
        const float right = stack.back();
        stack.pop_back();
        stack.back() += right;
      }
    }
    return stack.back();
  }
  std::vector<std::vector<float>> f32;
  std::vector<std::vector<uint16_t>> bits;  // of what has 16
  std::vector<Dtype> dtypes;
  ChunkGradient gradient;
};

std::vector<TreeNode> Leaves(int count) {
  std::vector<TreeNode> leaves;
  for (int i = 0; i < count; ++i) leaves.push_back({i, 1});
  return leaves;
}

// A chunk with memory of its own.
struct Chunk {
  Chunk(Dtype dtype, uint64_t seed, bool moments = true) : dtype(dtype), master(Normal(kElems, seed, 0.1)) {
    wire16.resize(kElems);
    out16.resize(kElems);
    rest.resize(kElems);
    out32.resize(kElems);
    for (int64_t i = 0; i < kElems; ++i) {
      wire16[i] = Split(master[i]).wire.bits;
      rest[i] = Split(master[i]).rest;
    }
    m = Normal(kElems, seed + 1, 1e-3);
    v = Normal(kElems, seed + 2, 1e-3);
    for (float& value : v) value *= value;
    state.wire_dtype = dtype;
    const bool is_fp32 = dtype == Dtype::kF32;
    state.wire_in = is_fp32 ? static_cast<const void*>(master.data()) : wire16.data();
    state.wire_out = is_fp32 ? static_cast<void*>(out32.data()) : out16.data();
    state.rest = dtype == Dtype::kBf16 ? rest.data() : nullptr;
    out32 = master;
    state.master = dtype == Dtype::kF16 ? out32.data() : nullptr;
    state.moment1 = moments ? m.data() : nullptr;
    state.moment2 = moments ? v.data() : nullptr;
    state.num_elems = kElems;
  }
  float Updated(int64_t i) const { return dtype == Dtype::kBf16 ? Join({{out16[i]}, rest[i]}) : out32[i]; }

  Dtype dtype;
  std::vector<float> master, out32, m, v;
  std::vector<uint16_t> wire16, out16, rest;
  ChunkState state;
};

// A chunk's moments, rounded to `format`; the chunk is made to use these.
struct NarrowMoments {
  NarrowMoments(Chunk& chunk, MomentFormat format) : format(format) {
    for (int which = 0; which < 2; ++which) {
      const std::vector<float>& exact = which == 0 ? chunk.m : chunk.v;
      bytes[which].resize(MomentBytes(format, kElems));
      if (format == MomentFormat::kFp8) {
        EncodeFp8(KindOfMoment(which), exact, bytes[which].data());
      } else {
        for (int64_t i = 0; i < kElems; ++i) Bits(which)[i] = ToBf16(exact[i]).bits;
      }
    }
    chunk.state.moment_format = format;
    chunk.state.moment1 = bytes[0].data();
    chunk.state.moment2 = bytes[1].data();
  }
  std::vector<float> Values(int which) {
    std::vector<Bf16> values(kElems);
    if (format == MomentFormat::kFp8) {
      DecodeFp8(KindOfMoment(which), bytes[which].data(), 0, absl::MakeSpan(values));
    } else {
      for (int64_t i = 0; i < kElems; ++i) values[i] = Bf16{Bits(which)[i]};
    }
    std::vector<float> floats;
    for (const Bf16 value : values) floats.push_back(ToFloat(value));
    return floats;
  }
  std::byte Exponent(int which, int64_t block) const { return bytes[which][(block + 1) * kFp8BlockBytes - 1]; }
  std::byte Code(int which, int64_t i) const {
    return bytes[which][i / kFp8BlockElems * kFp8BlockBytes + i % kFp8BlockElems];
  }
  uint16_t* Bits(int which) { return reinterpret_cast<uint16_t*>(bytes[which].data()); }
  MomentFormat format;
  std::vector<std::byte> bytes[2];
};

// What is kept of `exact`, by element of the blob.
std::vector<float> Rounded(MomentFormat format, int which, const std::vector<float>& exact, uint32_t key,
                           int64_t first_elem) {
  std::vector<float> kept;
  uint8_t shared_exponent = 0;
  for (int64_t i = 0; i < static_cast<int64_t>(exact.size()); ++i) {
    const uint16_t noise = MomentNoise(key, first_elem + i);
    if (format == MomentFormat::kBf16) {
      kept.push_back(ToFloat(RoundMoment(exact[i], noise)));
      continue;
    }
    const Fp8Kind kind = KindOfMoment(which);
    if (i % kFp8BlockElems == 0) {
      float largest = 0;
      for (int64_t k = i; k < i + kFp8BlockElems; ++k) largest = std::max(largest, std::abs(exact[k]));
      shared_exponent = Fp8SharedExponent(kind, std::bit_cast<uint32_t>(largest));
    }
    kept.push_back(ToFloat(FromFp8(kind, ToFp8(kind, exact[i], shared_exponent, noise), shared_exponent)));
  }
  return kept;
}

OptimizerConfig AdamWConfig() {
  OptimizerConfig config;
  config.beta1 = 0.9;
  config.beta2 = 0.95;
  config.weight_decay = 0.1;
  return config;
}
OptimizerConfig SgdConfig(double momentum) {
  OptimizerConfig config;
  config.rule = OptimizerRule::kSgd;
  config.momentum = momentum;
  config.weight_decay = 0.1;
  return config;
}
OptimizerConfig LionConfig() {
  OptimizerConfig config;
  config.rule = OptimizerRule::kLion;
  config.beta1 = 0.8;
  config.beta2 = 0.97;
  config.weight_decay = 0.1;
  return config;
}
// The middle decays.
const std::vector<DecayRange> kRanges = {{0, 64, false}, {64, 2048 + 128, true}, {2048 + 128, kElems, false}};
bool Decays(int64_t i) { return i >= 64 && i < 2048 + 128; }

void ExpectClose(double got, double want, double tolerance, int64_t i) {
  // NaN fails.
  if (!(std::abs(got - want) <= tolerance * (1e-3 + std::abs(want)))) {
    ADD_FAILURE() << "element " << i << ": " << got << ", want " << want;
  }
}

// Which of Highway's targets runs.
class ScopedTarget {
 public:
  explicit ScopedTarget(int64_t target) { Choose(target); }
  ~ScopedTarget() { Choose(0); }
  ScopedTarget(const ScopedTarget&) = delete;
  ScopedTarget& operator=(const ScopedTarget&) = delete;

 private:
  static void Choose(int64_t targets) {  // 0: what this processor has
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

class ChunkKernelsTest : public ::testing::TestWithParam<Dtype> {};

TEST_P(ChunkKernelsTest, AdamWAgreesWithFp64) {
  const Gradient gradient(Leaves(4), 4, Dtype::kBf16, 1);
  Chunk chunk(GetParam(), 2);
  const Chunk before = chunk;
  const double lr = 1e-3, scale = 0.25;
  const int t = 3;
  double squares = 0;
  UpdateChunk(chunk.state, gradient.gradient, kRanges, ComputeUpdateScalars(AdamWConfig(), lr, t, scale), &squares);
  double want_squares = 0;
  for (int64_t i = 0; i < kElems; ++i) {
    const double sum = gradient.SumAt(i), g = sum * scale;
    want_squares += sum * sum;
    const double m = 0.9 * before.m[i] + 0.1 * g;
    const double v = 0.95 * before.v[i] + 0.05 * g * g;
    const double bias1 = 1 - std::pow(0.9, t), bias2 = 1 - std::pow(0.95, t);
    double p = before.master[i];
    if (Decays(i)) p *= 1 - lr * 0.1;
    p -= lr / bias1 * m / (std::sqrt(v) / std::sqrt(bias2) + 1e-8);
    // fp32 keeps 24 bits; the update itself is about 1e-3 of the value.
    ExpectClose(chunk.Updated(i), p, 1e-6, i);
    if (chunk.dtype == Dtype::kF16) {
      ASSERT_EQ(chunk.out16[i], ToFp16(chunk.out32[i]).bits) << i;
    }
    ExpectClose(chunk.m[i], m, 1e-6, i);
    ExpectClose(chunk.v[i], v, 1e-6, i);
  }
  ExpectClose(squares, want_squares, 1e-12, -1);
}

TEST_P(ChunkKernelsTest, SgdAgreesWithFp64) {
  for (const double momentum : {0.0, 0.9}) {
    const Gradient gradient(Leaves(3), 3, Dtype::kF32, 5);
    Chunk chunk(GetParam(), 6, momentum != 0);
    const Chunk before = chunk;
    UpdateChunk(chunk.state, gradient.gradient, kRanges, ComputeUpdateScalars(SgdConfig(momentum), 0.1, 1, 1), nullptr);
    for (int64_t i = 0; i < kElems; ++i) {
      double g = gradient.SumAt(i);
      if (Decays(i)) g += 0.1 * before.master[i];
      if (momentum != 0) {
        g += momentum * before.m[i];
        ExpectClose(chunk.m[i], g, 1e-6, i);
      }
      ExpectClose(chunk.Updated(i), before.master[i] - 0.1 * g, 1e-6, i);
    }
  }
}

TEST_P(ChunkKernelsTest, LionAgreesWithFp64) {
  const Gradient gradient(Leaves(4), 4, Dtype::kBf16, 1);
  Chunk chunk(GetParam(), 2);
  const Chunk before = chunk;
  const double lr = 1e-3, scale = 0.25;
  UpdateChunk(chunk.state, gradient.gradient, kRanges, ComputeUpdateScalars(LionConfig(), lr, 3, scale), nullptr);
  int negative = 0;
  for (int64_t i = 0; i < kElems; ++i) {
    const double g = gradient.SumAt(i) * scale, direction = 0.8 * before.m[i] + 0.2 * g;
    double p = before.master[i];
    if (Decays(i)) p *= 1 - lr * 0.1;
    if (std::abs(direction) < 1e-9) continue;  // its sign may be lost in fp32
    negative += direction < 0 ? 1 : 0;
    ExpectClose(chunk.Updated(i), direction < 0 ? p + lr : p - lr, 1e-6, i);
    ExpectClose(chunk.m[i], 0.97 * before.m[i] + 0.03 * g, 1e-6, i);
  }
  EXPECT_GT(negative, kElems / 4);
}

TEST_P(ChunkKernelsTest, ZeroPaddingStaysZero) {
  Gradient gradient(Leaves(1), 1, Dtype::kF32, 1);
  std::fill(gradient.f32[0].begin(), gradient.f32[0].end(), 0.0f);
  for (const OptimizerConfig& config : {AdamWConfig(), SgdConfig(0.9), LionConfig()}) {
    Chunk chunk(GetParam(), 2);
    for (std::vector<float>* zeros : {&chunk.master, &chunk.out32, &chunk.m, &chunk.v}) {
      std::fill(zeros->begin(), zeros->end(), 0.0f);
    }
    for (int64_t i = 0; i < kElems; ++i) {
      chunk.wire16[i] = Split(0.0f).wire.bits;
      chunk.rest[i] = Split(0.0f).rest;
    }
    UpdateChunk(chunk.state, gradient.gradient, kRanges, ComputeUpdateScalars(config, 0.1, 1, 1), nullptr);
    for (int64_t i = 0; i < kElems; ++i) ASSERT_EQ(chunk.Updated(i), 0.0f) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Wire, ChunkKernelsTest, ::testing::Values(Dtype::kF32, Dtype::kBf16, Dtype::kF16));

// Two contributions are added as they are read, one is read as it is; more, and what has other forms, through a block.
TEST(ChunkKernelsFormTest, EveryFormOfAGradientGivesTheSameUpdate) {
  for (const int num_vnodes : {1, 2, 5}) {
    for (const Dtype leaves : {Dtype::kBf16, Dtype::kF16}) {
      const Gradient narrow(Leaves(num_vnodes), num_vnodes, leaves, 7);
      Gradient wide(Leaves(num_vnodes), num_vnodes, Dtype::kF32, 7);
      for (int v = 0; v < num_vnodes; ++v) std::copy(narrow.f32[v].begin(), narrow.f32[v].end(), wide.f32[v].begin());
      Chunk from_narrow(Dtype::kF16, 8), from_wide(Dtype::kF16, 8);
      const UpdateScalars scalars = ComputeUpdateScalars(AdamWConfig(), 1e-3, 2, 0.5);
      UpdateChunk(from_narrow.state, narrow.gradient, kRanges, scalars, nullptr);
      UpdateChunk(from_wide.state, wide.gradient, kRanges, scalars, nullptr);
      EXPECT_TRUE(from_narrow.out32 == from_wide.out32) << num_vnodes << " " << DtypeName(leaves);
      EXPECT_TRUE(from_narrow.out16 == from_wide.out16);
    }
  }
}

constexpr int64_t kZeroBlock = 70;  // where nothing decays

// Values of a block that lie far apart, in every fourth; a block of zeros, and one of the smallest numbers.
float Unevenness(int64_t i) {
  const int64_t block = i / kFp8BlockElems, place = i % kFp8BlockElems;
  if (block == kZeroBlock) return 0;
  if (block == kZeroBlock + 1) return 0x1p-59f;
  return block % 4 == 0 ? std::exp2(-static_cast<float>(place)) : 1;
}

// By the gradients of each leaf, in fp32.
Gradient UnevenGradient(int num_vnodes) {
  Gradient gradient(Leaves(num_vnodes), num_vnodes, Dtype::kF32, 3);
  for (std::vector<float>& leaf : gradient.f32) {
    for (int64_t i = 0; i < kElems; ++i) leaf[i] *= Unevenness(i);
  }
  return gradient;
}

// What fp8 does at its ends was seen: zeros of both signs, smallest second moments that stand for less, and blocks whose
// exponent is the lowest.
void ExpectEdges(int which, const NarrowMoments& moments, const std::vector<float>& values) {
  int positive_zeros = 0, negative_zeros = 0, smallest = 0, lowest = 0;
  for (int64_t i = 0; i < kElems; ++i) {
    if (i / kFp8BlockElems == kZeroBlock || i / kFp8BlockElems == kZeroBlock + 1) continue;
    positive_zeros += values[i] == 0 && !std::signbit(values[i]);
    negative_zeros += values[i] == 0 && std::signbit(values[i]);
    smallest += moments.Code(which, i) == std::byte{0};
  }
  for (int64_t block = 0; block < kElems / kFp8BlockElems; ++block)
    lowest += moments.Exponent(which, block) == std::byte{0};
  if (which == 0) {
    EXPECT_GT(positive_zeros, 100);
    EXPECT_GT(negative_zeros, 100);
    EXPECT_EQ(lowest, 1);  // of zeros
  } else {
    EXPECT_EQ(positive_zeros + negative_zeros, 0);
    EXPECT_GT(smallest, 100);
    EXPECT_EQ(lowest, 2);
  }
}

// The arithmetic is that of fp32 moments, and so are the weights; what is kept of the moments is rounded as
// moment_rounding.h says, by the element's number in its blob.
void ExpectNarrowMomentsAreTheFp32OnesRounded(Dtype wire) {
  const Gradient gradient = UnevenGradient(2);
  constexpr int64_t kFirstElem = 3 * kChunkElems;
  for (const MomentFormat format : {MomentFormat::kBf16, MomentFormat::kFp8}) {
    for (const OptimizerConfig& config : {AdamWConfig(), SgdConfig(0.9), LionConfig()}) {
      Chunk exact(wire, 4), rounded(wire, 4);
      for (int64_t i = 0; i < kElems; ++i) {
        rounded.m[i] *= Unevenness(i);
        rounded.v[i] *= Unevenness(i) * Unevenness(i);
      }
      NarrowMoments moments(rounded, format);
      std::ranges::copy(moments.Values(0), exact.m.begin());
      std::ranges::copy(moments.Values(1), exact.v.begin());
      rounded.state.first_elem = kFirstElem;
      UpdateScalars scalars = ComputeUpdateScalars(config, 1e-3, 5, 0.5);
      scalars.moment_key =
          -static_cast<uint32_t>(kFirstElem / 2) - 0x500u;  // words' numbers wrap around within the chunk
      UpdateChunk(exact.state, gradient.gradient, kRanges, scalars, nullptr);
      UpdateChunk(rounded.state, gradient.gradient, kRanges, scalars, nullptr);
      for (int64_t i = 0; i < kElems; ++i) ASSERT_EQ(rounded.Updated(i), exact.Updated(i)) << i;
      for (int which = 0; which < (config.rule == OptimizerRule::kAdamW ? 2 : 1); ++which) {
        const std::vector<float> want =
            Rounded(format, which, which == 0 ? exact.m : exact.v, scalars.moment_key, kFirstElem);
        const std::vector<float> got = moments.Values(which);
        if (format == MomentFormat::kFp8) ExpectEdges(which, moments, want);
        for (int64_t i = 0; i < kElems; ++i) {
          ASSERT_EQ(std::bit_cast<uint32_t>(got[i]), std::bit_cast<uint32_t>(want[i])) << which << " " << i;
        }
      }
    }
  }
}

TEST_P(ChunkKernelsTest, NarrowMomentsAreTheFp32OnesRounded) { ExpectNarrowMomentsAreTheFp32OnesRounded(GetParam()); }

// The code that every target but AVX2 has, where there is nothing else to run it on.
TEST_P(ChunkKernelsTest, NarrowMomentsAreTheFp32OnesRoundedInOrderedLanesToo) {
  const ScopedTarget fallback(HWY_SCALAR);
  if (CheckVectorUnit().ok()) GTEST_SKIP() << "Highway's fallback is not among the targets";
  ExpectNarrowMomentsAreTheFp32OnesRounded(GetParam());
}

// Everything that the wire may hold: each number of binary16 is a gradient.
TEST(ChunkKernelsFormTest, EveryFp16NumberIsReadAsItself) {
  constexpr int64_t kCount = 0x7C00;  // the finite ones that are not negative
  alignas(64) static uint16_t bits[kCount];
  for (int64_t i = 0; i < kCount; ++i) bits[i] = static_cast<uint16_t>(i % 2 == 0 ? i : i | 0x8000);
  ChunkGradient gradient;
  gradient.operands = {{Dtype::kF16, reinterpret_cast<const std::byte*>(bits), {0, 1}, 0}};
  gradient.program = {{SumOp::Kind::kLoad, 0}};
  std::vector<float> sum(kCount);
  SumChunk(gradient, kCount, sum.data());
  for (int64_t i = 0; i < kCount; ++i) ASSERT_EQ(sum[i], ToFloat(Fp16{bits[i]})) << i;
}

TEST(SumChunkTest, IsTheTreesSumBitForBitForAnySplit) {
  for (const int num_vnodes : {1, 2, 3, 5, 7, 8, 13}) {
    const Gradient leaves(Leaves(num_vnodes), num_vnodes, Dtype::kBf16, 3);
    std::vector<float> sum(kElems);
    SumChunk(leaves.gradient, kElems, sum.data());
    for (int64_t i = 0; i < kElems; ++i) ASSERT_EQ(sum[i], leaves.SumAt(i)) << num_vnodes << " " << i;
    // The same leaves, the first half already summed by a worker.
    if (num_vnodes < 3) continue;
    const int left = LeftLeaves(num_vnodes);
    Gradient worker(Leaves(left), left, Dtype::kBf16, 3);
    std::vector<float> partial(kElems), again(kElems);
    SumChunk(worker.gradient, kElems, partial.data());
    ChunkGradient mixed = leaves.gradient;
    mixed.operands.erase(mixed.operands.begin(), mixed.operands.begin() + left);
    mixed.operands.insert(mixed.operands.begin(),
                          {Dtype::kF32, reinterpret_cast<const std::byte*>(partial.data()), {0, left}, 0});
    std::vector<TreeNode> nodes;
    for (const GradientOperand& operand : mixed.operands) nodes.push_back(operand.node);
    mixed.program = SumProgram(nodes, num_vnodes);
    SumChunk(mixed, kElems, again.data());
    ASSERT_EQ(std::memcmp(sum.data(), again.data(), kElems * 4), 0) << num_vnodes;
  }
}

TEST(SumChunkTest, SquaresAreAddedBySixteenLanesInOrder) {
  const Gradient gradient(Leaves(2), 2, Dtype::kF32, 9);
  double lanes[16] = {};
  for (int64_t i = 0; i < kElems; ++i) lanes[i % 16] += double{gradient.SumAt(i)} * gradient.SumAt(i);
  double want = 0;
  for (const double lane : lanes) want += lane;
  EXPECT_EQ(SumChunk(gradient.gradient, kElems, nullptr), want);
}

TEST(SumChunkTest, SquaresTellOfAnyElementThatIsNotFinite) {
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    Gradient gradient(Leaves(2), 2, Dtype::kF32, 9);
    gradient.f32[1][777] = bad;
    EXPECT_FALSE(std::isfinite(SumChunk(gradient.gradient, kElems, nullptr)));
    // The largest finite gradients do not overflow the squares.
    Gradient large(Leaves(1), 1, Dtype::kF32, 9);
    std::fill(large.f32[0].begin(), large.f32[0].end(), std::numeric_limits<float>::max());
    EXPECT_TRUE(std::isfinite(SumChunk(large.gradient, kElems, nullptr)));
  }
}

// Every vector width that this processor has gives the same bits.
TEST(ChunkKernelsBitsTest, DoNotDependOnTheVectorWidth) {
  ASSERT_OK(CheckVectorUnit());
  std::vector<std::string> results;
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t target : {HWY_AVX3, HWY_AVX2, HWY_NEON}) {
    if ((supported & target) == 0) continue;
    const ScopedTarget chosen(target);
    ASSERT_OK(CheckVectorUnit());
    std::string bits;
    for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
      for (const OptimizerConfig& config : {AdamWConfig(), SgdConfig(0.9), LionConfig()}) {
        for (const int num_vnodes : {1, 2, 5}) {
          const Gradient gradient =
              dtype == Dtype::kF32 ? UnevenGradient(num_vnodes) : Gradient(Leaves(num_vnodes), num_vnodes, dtype, 4);
          for (const MomentFormat format : {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8}) {
            Chunk chunk(dtype, 8);
            std::optional<NarrowMoments> moments;
            if (format != MomentFormat::kFp32) moments.emplace(chunk, format);
            UpdateScalars scalars = ComputeUpdateScalars(config, 1e-3, 2, 0.7);
            scalars.moment_key = 7;
            double squares = 0;
            UpdateChunk(chunk.state, gradient.gradient, kRanges, scalars, &squares);
            const std::vector<float> m = moments.has_value() ? moments->Values(0) : chunk.m;
            const std::vector<float> v = moments.has_value() ? moments->Values(1) : chunk.v;
            for (int64_t i = 0; i < kElems; ++i) {
              for (const float value : {chunk.Updated(i), m[i], v[i]}) {
                ASSERT_TRUE(std::isfinite(value)) << i;
                bits.append(reinterpret_cast<const char*>(&value), sizeof(value));
              }
            }
            bits.append(reinterpret_cast<const char*>(&squares), sizeof(squares));
          }
        }
      }
    }
    results.push_back(bits);
  }
  for (const std::string& bits : results) EXPECT_TRUE(bits == results[0]);
  RecordProperty("widths", static_cast<int>(results.size()));
  EXPECT_GE(results.size(), 1u);
}

}  // namespace
}  // namespace eps::server
