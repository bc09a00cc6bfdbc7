#include "eps_server/optimizer/chunk_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/schedule/reduction_tree.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/chunk_kernels_testing.h"
#include "eps_server/optimizer/update_scalars.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace eps::server {
namespace {

bool Decays(int64_t i) { return i >= 64 && i < 2048 + 128; }
void ExpectClose(double got, double want, double tolerance, int64_t i) {
  // NaN fails.
  if (!(std::abs(got - want) <= tolerance * (1e-3 + std::abs(want)))) {
    ADD_FAILURE() << "element " << i << ": " << got << ", want " << want;
  }
}

class ChunkKernelsTest : public ::testing::TestWithParam<Dtype> {};

TEST_P(ChunkKernelsTest, AdamWAgreesWithFp64) {
  const Gradient gradient(Leaves(4), 4, Dtype::kBf16, 1);
  Chunk chunk(GetParam(), 2);
  const Chunk before = chunk;
  const double lr = 1e-3, scale = 0.25;
  const int t = 3;
  double squares = 0;
  UpdateChunk(chunk.state, gradient.gradient, kRanges, ScalarsOf(AdamWConfig(), lr, t, scale), &squares);
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

TEST_P(ChunkKernelsTest, AdamAgreesWithFp64) {
  const Gradient gradient(Leaves(4), 4, Dtype::kBf16, 1);
  Chunk chunk(GetParam(), 2);
  const Chunk before = chunk;
  const double lr = 1e-3, scale = 0.25;
  const int t = 3;
  UpdateChunk(chunk.state, gradient.gradient, kRanges, ScalarsOf(AdamConfig(), lr, t, scale), nullptr);
  for (int64_t i = 0; i < kElems; ++i) {
    const double g = gradient.SumAt(i) * scale + (Decays(i) ? 0.1 * before.master[i] : 0);
    const double m = 0.9 * before.m[i] + 0.1 * g, v = 0.95 * before.v[i] + 0.05 * g * g;
    const double bias1 = 1 - std::pow(0.9, t), bias2 = 1 - std::pow(0.95, t);
    ExpectClose(chunk.Updated(i), before.master[i] - lr / bias1 * m / (std::sqrt(v) / std::sqrt(bias2) + 1e-8), 1e-6,
                i);
    ExpectClose(chunk.m[i], m, 1e-6, i);
    ExpectClose(chunk.v[i], v, 1e-6, i);
  }
}

TEST_P(ChunkKernelsTest, SgdAgreesWithFp64) {
  for (const double momentum : {0.0, 0.9}) {
    const Gradient gradient(Leaves(3), 3, Dtype::kF32, 5);
    Chunk chunk(GetParam(), 6, momentum != 0);
    const Chunk before = chunk;
    UpdateChunk(chunk.state, gradient.gradient, kRanges, ScalarsOf(SgdConfig(momentum), 0.1, 1, 1), nullptr);
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
  UpdateChunk(chunk.state, gradient.gradient, kRanges, ScalarsOf(LionConfig(), lr, 3, scale), nullptr);
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
  for (const OptimizerConfig& config : {AdamWConfig(), AdamConfig(), SgdConfig(0.9), LionConfig()}) {
    Chunk chunk(GetParam(), 2);
    for (std::vector<float>* zeros : {&chunk.master, &chunk.out32, &chunk.m, &chunk.v}) {
      std::fill(zeros->begin(), zeros->end(), 0.0f);
    }
    for (int64_t i = 0; i < kElems; ++i) {
      chunk.wire16[i] = Split(0.0f).wire.bits;
      chunk.rest[i] = Split(0.0f).rest;
    }
    UpdateChunk(chunk.state, gradient.gradient, kRanges, ScalarsOf(config, 0.1, 1, 1), nullptr);
    for (int64_t i = 0; i < kElems; ++i) ASSERT_EQ(chunk.Updated(i), 0.0f) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Wire, ChunkKernelsTest, ::testing::Values(Dtype::kF32, Dtype::kBf16, Dtype::kF16));

// As they are read one by one, two at once, and through a block.
class LambPassTest : public ::testing::TestWithParam<std::tuple<Dtype, Dtype, int>> {};  // wire, leaves, how many
INSTANTIATE_TEST_SUITE_P(Forms, LambPassTest,
                         ::testing::Combine(::testing::Values(Dtype::kF32, Dtype::kBf16, Dtype::kF16),
                                            ::testing::Values(Dtype::kF32, Dtype::kBf16), ::testing::Values(1, 2, 4)));

TEST_P(LambPassTest, AgreesWithFp64AndWritesNothing) {
  const auto [wire, leaves, count] = GetParam();
  const Gradient gradient(Leaves(count), count, leaves, 1);
  Chunk chunk(wire, 2);
  const Chunk before = chunk;
  const int t = 3;
  std::vector<StepSquares> squares(kRanges.size());
  const double of_gradient = MeasureSteps(chunk.state, gradient.gradient, kRanges,
                                          ScalarsOf(LambConfig(), 1e-3, t, 0.25), absl::MakeSpan(squares));
  EXPECT_EQ(of_gradient, SumChunk(gradient.gradient, kElems, nullptr));
  for (size_t r = 0; r < kRanges.size(); ++r) {
    StepSquares want;
    for (int64_t i = kRanges[r].begin; i < kRanges[r].end; ++i) {
      const double g = gradient.SumAt(i) * 0.25;
      const double m = 0.9 * before.m[i] + 0.1 * g, v = 0.95 * before.v[i] + 0.05 * g * g;
      const double u = m / (1 - std::pow(0.9, t)) / (std::sqrt(v) / std::sqrt(1 - std::pow(0.95, t)) + 1e-8) +
                       (Decays(i) ? 0.1 * before.master[i] : 0);
      want.weights += double{before.master[i]} * before.master[i];
      want.step += u * u;
    }
    ExpectClose(squares[r].weights, want.weights, 1e-12, static_cast<int64_t>(r));
    ExpectClose(squares[r].step, want.step, 1e-6, static_cast<int64_t>(r));
  }
  EXPECT_TRUE(chunk.out32 == before.out32 && chunk.out16 == before.out16 && chunk.rest == before.rest);
  EXPECT_TRUE(chunk.m == before.m && chunk.v == before.v);
}

// Two contributions are added as they are read, one is read as it is; more, and what has other forms, through a block.
TEST(ChunkKernelsFormTest, EveryFormOfAGradientGivesTheSameUpdate) {
  for (const int num_vnodes : {1, 2, 5}) {
    for (const Dtype leaves : {Dtype::kBf16, Dtype::kF16}) {
      const Gradient narrow(Leaves(num_vnodes), num_vnodes, leaves, 7);
      Gradient wide(Leaves(num_vnodes), num_vnodes, Dtype::kF32, 7);
      for (int v = 0; v < num_vnodes; ++v) std::copy(narrow.f32[v].begin(), narrow.f32[v].end(), wide.f32[v].begin());
      Chunk from_narrow(Dtype::kF16, 8), from_wide(Dtype::kF16, 8);
      const UpdateScalars scalars = ScalarsOf(AdamWConfig(), 1e-3, 2, 0.5);
      UpdateChunk(from_narrow.state, narrow.gradient, kRanges, scalars, nullptr);
      UpdateChunk(from_wide.state, wide.gradient, kRanges, scalars, nullptr);
      EXPECT_TRUE(from_narrow.out32 == from_wide.out32) << num_vnodes << " " << DtypeName(leaves);
      EXPECT_TRUE(from_narrow.out16 == from_wide.out16);
    }
  }
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
      for (const OptimizerConfig& config : {AdamWConfig(), AdamConfig(), SgdConfig(0.9), LionConfig(), LambConfig()}) {
        for (const int num_vnodes : {1, 2, 5}) {
          const Gradient gradient =
              dtype == Dtype::kF32 ? UnevenGradient(num_vnodes) : Gradient(Leaves(num_vnodes), num_vnodes, dtype, 4);
          for (const MomentFormat format : {MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8}) {
            Chunk chunk(dtype, 8);
            std::optional<NarrowMoments> moments;
            if (format != MomentFormat::kFp32) moments.emplace(chunk, format);
            UpdateScalars scalars = ScalarsOf(config, 1e-3, 2, 0.7);
            scalars.moment_key = 7;
            double squares = 0;
            if (config.rule == OptimizerRule::kLamb) {
              std::vector<StepSquares> measured(kRanges.size());
              MeasureSteps(chunk.state, gradient.gradient, kRanges, scalars, absl::MakeSpan(measured));
              bits.append(reinterpret_cast<const char*>(measured.data()), measured.size() * sizeof(StepSquares));
            }
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
