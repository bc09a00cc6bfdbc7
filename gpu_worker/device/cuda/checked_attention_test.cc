#include "gpu_worker/device/cuda/checked_attention.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::shared_ptr<GpuRuntime> Runtime(EmulatedTraits traits = {}) {
  traits.has_fused_attention = true;
  return NewEmulatedRuntime(GridOrder::kForward, std::move(traits));
}

const SdpaProblem kProblem = {.B = 2, .T = 40, .H = 4, .kv_heads = 2, .D = 16, .scale = 0.25};

SdpaProblem With(double dropout, bool documents, int64_t window, bool causal = true, Dtype act = Dtype::kBf16) {
  SdpaProblem problem = kProblem;
  problem.dropout = dropout;
  problem.documents = documents;
  problem.window = window;
  problem.causal = causal;
  problem.act = act;
  return problem;
}

TEST(CheckedAttentionTest, WhatIsRightIsFarCloserThanTheBound) {
  for (const SdpaProblem& problem :
       {kProblem, With(0.5, false, 0), With(0, true, 0), With(0, true, 0, false), With(0, false, 7), With(0.5, true, 7),
        With(0.5, true, 0, false), With(0.5, true, 7, true, Dtype::kF16)}) {
    ASSERT_OK_AND_ASSIGN(const CheckedAttention::Distance apart, CheckedAttention::Measure(*Runtime(), problem));
    EXPECT_LT(apart.Largest(), problem.act == Dtype::kBf16 ? 0.01 : 0.002);
    EXPECT_GT(apart.Largest(), 0) << "they are computed in other orders";
    EXPECT_THAT(CheckedAttention(Runtime()).Takes(problem), IsOkAndHolds(true));
  }
}

TEST(CheckedAttentionTest, WhatIsComputedOtherwiseIsFarApart) {
  const std::shared_ptr<GpuRuntime> runtime = Runtime({.errs_in_dropout = true});
  for (const bool causal : {true, false}) {
    ASSERT_OK_AND_ASSIGN(const CheckedAttention::Distance apart,
                         CheckedAttention::Measure(*runtime, With(0.5, false, 0, causal)));
    EXPECT_LT(apart.output, 0.01);
    EXPECT_LT(apart.values, 0.01);
    EXPECT_GT(apart.queries, 0.1);
    EXPECT_GT(apart.keys, 0.1);
    // Whatever the run's own scale, sizes and rate.
    for (const double scale : {1e-3, 0.1, 1.0}) {
      for (const int64_t D : {8, 64, 128}) {
        SdpaProblem problem = With(0.1, false, 0, causal);
        problem.scale = scale;
        problem.D = D;
        EXPECT_THAT(CheckedAttention(runtime).Takes(problem), IsOkAndHolds(false)) << D << " " << scale;
      }
    }
  }
}

TEST(CheckedAttentionTest, WhatIsComputedOtherwiseIsNotTaken) {
  const std::shared_ptr<GpuRuntime> runtime = Runtime({.errs_in_dropout = true});
  CheckedAttention attention(runtime);
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(attention.Takes(With(0.1, false, 0)), IsOkAndHolds(false));
  SdpaProblem longer = With(0.2, false, 0);
  longer.T = 300;
  EXPECT_THAT(attention.Takes(longer), IsOkAndHolds(false));
  EXPECT_THAT(attention.Algorithm(longer), IsOkAndHolds(std::string(kPlainAttention)));
  EXPECT_THAT(attention.Takes(kProblem), IsOkAndHolds(true));
  EXPECT_THAT(attention.Algorithm(With(0, true, 0)), IsOkAndHolds("graph"));
  const std::string said = ::testing::internal::GetCapturedStderr();
  const std::string warning = "WARNING attention_is_plain_and_slow why=\"the library computes it otherwise";
  ASSERT_THAT(said, HasSubstr(warning));
  EXPECT_THAT(said, HasSubstr("D 16, causal, dropout"));
  EXPECT_THAT(said.substr(said.find(warning) + 1), Not(HasSubstr("WARNING"))) << "said once, of one kind";
  EXPECT_THAT(said, HasSubstr("INFO attention_checked attention=\"D 16, causal, documents\""));
}

TEST(CheckedAttentionTest, AnEngineThatComputesOtherwiseIsPassedOverForTheNext) {
  const std::shared_ptr<GpuRuntime> runtime = Runtime({.attention_engines = 2, .errs_in_dropout = true});
  CheckedAttention attention(runtime);
  ::testing::internal::CaptureStderr();
  const SdpaProblem dropped = With(0.1, false, 0);
  EXPECT_THAT(attention.Takes(dropped), IsOkAndHolds(true));
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, HasSubstr("INFO attention_checked attention=\"D 16, causal, dropout\" algorithm=\"graph 1\""));
  EXPECT_THAT(said, HasSubstr("not_taken=\"graph: output "));
  EXPECT_THAT(attention.Algorithm(dropped), IsOkAndHolds("graph 1"));
  const SdpaProblem asked = attention.AsAsked(dropped);
  EXPECT_EQ(asked.passed_forward, std::vector<int64_t>());
  EXPECT_EQ(asked.passed_backward, std::vector<int64_t>{0});
  ASSERT_OK_AND_ASSIGN(const CheckedAttention::Distance apart, CheckedAttention::Measure(*runtime, asked));
  EXPECT_LT(apart.Largest(), 0.01);
  EXPECT_EQ(attention.AsAsked(kProblem), kProblem);
  EXPECT_THAT(attention.Algorithm(With(0, true, 0)), IsOkAndHolds("graph"));
}

TEST(CheckedAttentionTest, ProblemsOfTwoTokensAreTriedToo) {
  for (const int64_t window : {0, 1, 2}) {
    SdpaProblem problem = With(0.1, true, window);
    problem.T = 2;
    EXPECT_THAT(CheckedAttention(Runtime()).Takes(problem), IsOkAndHolds(true)) << window;
  }
}

TEST(CheckedAttentionTest, ANaNIsTheLargest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const CheckedAttention::Distance& apart :
       {CheckedAttention::Distance{nan, 1, 1, 1}, CheckedAttention::Distance{1, nan, 1, 1},
        CheckedAttention::Distance{1, 1, 1, nan}}) {
    EXPECT_TRUE(std::isnan(apart.Largest()));
  }
  EXPECT_EQ((CheckedAttention::Distance{1, 3, 2, 0}.Largest()), 3);
}

TEST(CheckedAttentionTest, WhatIsNotTakenIsNotTried) {
  SdpaProblem odd = With(0.5, true, 0);
  odd.D = 9;
  ::testing::internal::CaptureStderr();
  CheckedAttention attention(Runtime());
  EXPECT_THAT(attention.Takes(odd), IsOkAndHolds(false));
  EXPECT_THAT(attention.Takes(kProblem), IsOkAndHolds(true));
  EXPECT_FALSE(attention.Tries(kProblem));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), Not(HasSubstr("attention_checked")));
}

TEST(CheckedAttentionTest, ErrorsAreNoAnswers) {
  CheckedAttention attention(Runtime({.attention_error = absl::ResourceExhaustedError("no room")}));
  EXPECT_THAT(attention.Takes(With(0.5, false, 0)), StatusIs(absl::StatusCode::kResourceExhausted, "no room"));
  CheckedAttention failing(Runtime({.good_launches = 0}));
  EXPECT_THAT(failing.Takes(With(0.5, false, 0)), StatusIs(absl::StatusCode::kInternal, ""));
}

}  // namespace
}  // namespace eps::worker::cuda
