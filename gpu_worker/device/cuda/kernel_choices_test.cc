#include "gpu_worker/device/cuda/kernel_choices.h"

#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/choices/choices.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using absl::StatusCode;
using std::chrono::milliseconds;

const EmulatedAlgorithm kRising = {.name = "rising", .order = SumOrder::kRising};
const EmulatedAlgorithm kFalling = {.name = "falling", .order = SumOrder::kFalling};

std::shared_ptr<GpuRuntime> Runtime(std::vector<EmulatedAlgorithm> algorithms) {
  return NewEmulatedRuntime(GridOrder::kForward, {.algorithms = std::move(algorithms)});
}

// Products of two shapes, in memory of their own.
struct Products {
  std::vector<float> memory = std::vector<float>(4096);
  MatMulProblem first = Product(2, 0), second = Product(3, 1024);

  MatMulProblem Product(int64_t M, size_t at) {
    float* const start = memory.data() + at;
    return {.M = M,
            .N = 4,
            .K = 8,
            .a = start,
            .lda = 8,
            .b = start + 64,
            .ldb = 4,
            .c = start + 128,
            .ldc = 4,
            .addend = start + 128,
            .bias = start + 192};
  }
  std::string FirstKey() const { return KeyOf(LtShapeOf(first)); }
  std::string SecondKey() const { return KeyOf(LtShapeOf(second)); }
};

TEST(KernelChoicesTest, TheFirstThatIsOfferedIsChosenForEachShape) {
  Products products;
  KernelChoices choices(Runtime({kFalling, kRising}));
  choices.MatMul(products.first);
  choices.MatMul(products.second);
  choices.MatMul(products.first);
  EXPECT_THAT(choices.Choose(ChoiceRule::kFirst),
              IsOkAndHolds(Choices{{products.FirstKey(), "falling"}, {products.SecondKey(), "falling"}}));
  for (const float x : products.memory) EXPECT_EQ(x, 0);  // nothing was run
}

TEST(KernelChoicesTest, TheFastestIsFoundByTrying) {
  Products products;
  EmulatedAlgorithm slow = kRising, slower = kFalling;
  slow.takes = milliseconds(2);
  slower.takes = milliseconds(4);
  KernelChoices choices(Runtime({slower, slow}));
  choices.MatMul(products.first);
  EXPECT_THAT(choices.Choose(ChoiceRule::kFastest), IsOkAndHolds(Choices{{products.FirstKey(), "rising"}}));
  for (const float* operand : {static_cast<const float*>(products.first.a), static_cast<const float*>(products.first.b),
                               static_cast<const float*>(products.first.bias)}) {
    for (int i = 0; i < 4; ++i) {
      EXPECT_GE(std::abs(operand[i]), 0.5f);
      EXPECT_LT(std::abs(operand[i]), 1.0f);
    }
  }
}

TEST(KernelChoicesTest, OneThatFailsWhenItIsTriedIsLeftOut) {
  Products products;
  const auto choose = [&](bool refuses_falling) {
    EmulatedTraits traits;
    traits.algorithms[0].is_refused = true;
    traits.algorithms[1].is_refused = refuses_falling;
    KernelChoices choices(NewEmulatedRuntime(GridOrder::kForward, traits));
    choices.MatMul(products.first);
    return choices.Choose(ChoiceRule::kFastest);
  };
  EXPECT_THAT(choose(false), IsOkAndHolds(Choices{{products.FirstKey(), "falling"}}));
  EXPECT_THAT(choose(true), StatusIs(StatusCode::kInternal, products.FirstKey() + ": the emulator refuses \"rising\""));
}

TEST(KernelChoicesTest, WhatCannotBeFollowedIsNamed) {
  Products products;
  KernelChoices choices(Runtime({kRising}));
  choices.MatMul(products.first);
  choices.MatMul(products.second);
  EXPECT_THAT(choices.Follow({{products.FirstKey(), "rising"}}),
              StatusIs(StatusCode::kFailedPrecondition,
                       "the run's choices for cuda emulated have none for " + products.SecondKey()));
  EXPECT_THAT(choices.Follow({{products.FirstKey(), "rising"}, {products.SecondKey(), "falling"}}),
              StatusIs(StatusCode::kFailedPrecondition, "cannot follow the run's choice for " + products.SecondKey() +
                                                            ": the emulator has no algorithm \"falling\""));
  EXPECT_OK(choices.Follow(
      {{products.FirstKey(), "rising"}, {products.SecondKey(), "rising"}, {"of a layer that is not here", "x"}}));
}

TEST(KernelChoicesTest, WhatComputesAttentionIsToldAndFollowedOrNamed) {
  SdpaProblem fused = {.B = 2, .T = 16, .H = 4, .kv_heads = 2, .D = 8, .scale = 0.5, .window = 5, .dropout = 0.1};
  SdpaProblem plain = fused;
  plain.D = 9;
  const auto surveyed = [&](const EmulatedTraits& traits, bool plain_attention = false) {
    auto choices = std::make_unique<KernelChoices>(NewEmulatedRuntime(GridOrder::kForward, traits), plain_attention);
    EXPECT_FALSE(choices->TakesAttention(fused));
    EXPECT_FALSE(choices->TakesAttention(plain));
    return choices;
  };
  const std::string key = "attention BF16 B 2 T 16 H 4/2 D 8 scale 0.5 causal window 5 dropout 0.1";
  const Choices made = {{key, "graph"},
                        {"attention BF16 B 2 T 16 H 4/2 D 9 scale 0.5 causal window 5 dropout 0.1", "plain"}};
  const EmulatedTraits traits = {.has_fused_attention = true};
  EXPECT_THAT(surveyed(traits)->Choose(ChoiceRule::kFirst), IsOkAndHolds(made));
  EXPECT_OK(surveyed(traits)->Follow(made));
  EXPECT_THAT(surveyed(traits)->Follow({}), StatusIs(StatusCode::kFailedPrecondition,
                                                     "the run's choices for cuda emulated, fused attention have none "
                                                     "for attention BF16 B 2"));
  // An engine failed here that works elsewhere; or all of them.
  EXPECT_THAT(
      surveyed({.has_fused_attention = true, .attention_algorithm = "another engine"})->Follow(made),
      StatusIs(StatusCode::kFailedPrecondition, "cannot follow the run's choice for " + key +
                                                    ": it is \"graph\", and this device has \"another engine\""));
  EXPECT_THAT(surveyed({})->Follow(made),
              StatusIs(StatusCode::kFailedPrecondition, "it is \"graph\", and this device has \"plain\""));
  EXPECT_THAT(surveyed({.attention_error = absl::ResourceExhaustedError("no room")})->Follow(made),
              StatusIs(StatusCode::kResourceExhausted, key + ": no room"));
  // Where the run asks for the plain kernel no library is asked.
  EXPECT_THAT(surveyed(traits, /*plain_attention=*/true)->Choose(ChoiceRule::kFirst), IsOkAndHolds(Choices()));
}

// ---- the device ----

// 1e8 + 1 - 1e8 + 1, which is 1 or 0 by the order of its sum, in fp32.
class CudaDeviceChoicesTest : public ::testing::Test {
 protected:
  explicit CudaDeviceChoicesTest(std::vector<EmulatedAlgorithm> algorithms = {kRising, kFalling})
      : device_(NewCudaDevice({.arena_bytes = 4096, .act = Dtype::kF32},
                              NewEmulatedRuntime(GridOrder::kForward, {.algorithms = std::move(algorithms)}))
                    .value()) {}

  static constexpr ArenaSpan kA = {0, 256}, kB = {256, 256}, kC = {512, 256};
  MatMulArgs Product(int64_t N = 1) {
    return {.M = 1, .N = N, .K = 4, .a = At(kA), .lda = 4, .b = At(kB), .ldb = N, .c = At(kC), .ldc = N};
  }
  float* At(ArenaSpan span) { return static_cast<float*>(device_->Address(span).value()); }

  absl::StatusOr<float> Run(const MatMulArgs& product) {
    const float a[] = {1, 1, 1, 1}, b[] = {1e8f, 1, -1e8f, 1};
    float c = -1;
    Stream& compute = device_->stream(StreamId::kCompute);
    compute.CopyIn(At(kA), absl::MakeConstSpan(reinterpret_cast<const std::byte*>(a), sizeof(a)));
    compute.CopyIn(At(kB), absl::MakeConstSpan(reinterpret_cast<const std::byte*>(b), sizeof(b)));
    device_->kernels().MatMul(product);
    compute.CopyOut(absl::MakeSpan(reinterpret_cast<std::byte*>(&c), sizeof(c)), At(kC));
    if (absl::Status status = compute.Synchronize(); !status.ok()) return status;
    return c;
  }

  std::unique_ptr<Device> device_;
};

TEST_F(CudaDeviceChoicesTest, WithoutAnyItTakesWhatComesFirst) { EXPECT_THAT(Run(Product()), IsOkAndHolds(1.0f)); }

TEST_F(CudaDeviceChoicesTest, ASurveyRunsNothing) {
  float* const c = At(kC);
  *c = 7;
  device_->survey()->MatMul(Product());
  ASSERT_OK(device_->stream(StreamId::kCompute).Synchronize());
  EXPECT_EQ(*c, 7);
}

TEST_F(CudaDeviceChoicesTest, WhatIsFollowedMakesTheBits) {
  device_->survey()->MatMul(Product());
  ASSERT_OK_AND_ASSIGN(Choices choices, device_->Choose(ChoiceRule::kFirst));
  ASSERT_EQ(choices.size(), 1u);
  ASSERT_OK(device_->Follow(choices));
  EXPECT_THAT(Run(Product()), IsOkAndHolds(1.0f));
  choices.begin()->second = "falling";
  ASSERT_OK(device_->Follow(choices));
  EXPECT_THAT(Run(Product()), IsOkAndHolds(0.0f));
}

TEST_F(CudaDeviceChoicesTest, AttentionWithoutAChoiceIsAnErrorOnceChoicesAreFollowed) {
  device_->survey()->MatMul(Product());
  ASSERT_OK(device_->Follow(device_->Choose(ChoiceRule::kFirst).value()));
  device_->kernels().Attention(
      {.B = 1, .T = 2, .H = 1, .kv_heads = 1, .D = 4, .qkv = At(kA), .o = At(kB), .lse = At(kC), .scale = 1});
  EXPECT_THAT(device_->stream(StreamId::kCompute).Synchronize(),
              StatusIs(StatusCode::kInternal, "attention F32 B 1 T 2 H 1/1 D 4 scale 1 causal: was not surveyed"));
  device_->Recover();
}

TEST_F(CudaDeviceChoicesTest, AProductWithoutAChoiceIsAnErrorOnceChoicesAreFollowed) {
  device_->survey()->MatMul(Product());
  ASSERT_OK(device_->Follow(device_->Choose(ChoiceRule::kFirst).value()));
  EXPECT_THAT(Run(Product(/*N=*/2)), StatusIs(StatusCode::kInternal, "F32[2x4/2]"));
  device_->Recover();
  EXPECT_THAT(Run(Product()), IsOkAndHolds(1.0f));
}

}  // namespace
}  // namespace eps::worker::cuda
