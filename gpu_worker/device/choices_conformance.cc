// Choices that change bits: made by one device, followed by others.

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/choices/choices.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using reference::Array;

constexpr int64_t kM = 96, kIn = 64, kOut = 80;

// A linear layer's three products, in a device's arena: the same values each time.
class Linear {
 public:
  explicit Linear(Device& device) : memory_(device) {
    std::mt19937 random(5);
    x_ = memory_.PutAct(RandomArray(random, kM * kIn));
    w_ = memory_.PutAct(RandomArray(random, kIn * kOut));
    bias_ = memory_.PutAct(RandomArray(random, kOut));
    dy_ = memory_.PutAct(RandomArray(random, kM * kOut));
    dw_ = memory_.PutF32(RandomArray(random, kIn * kOut));
    y_ = memory_.AllocAct(kM * kOut);
    dx_ = memory_.AllocAct(kM * kIn);
  }

  void Call(Kernels& kernels) const {
    kernels.MatMul(
        {.M = kM, .N = kOut, .K = kIn, .a = x_, .lda = kIn, .b = w_, .ldb = kOut, .c = y_, .ldc = kOut, .bias = bias_});
    kernels.MatMul({.M = kM,
                    .N = kIn,
                    .K = kOut,
                    .a = dy_,
                    .lda = kOut,
                    .b = w_,
                    .ldb = kOut,
                    .trans_b = true,
                    .c = dx_,
                    .ldc = kIn});
    CallLast(kernels);
  }
  void CallLast(Kernels& kernels) const {
    kernels.MatMul({.M = kIn,
                    .N = kOut,
                    .K = kM,
                    .a = x_,
                    .lda = kIn,
                    .trans_a = true,
                    .b = dy_,
                    .ldb = kOut,
                    .c = dw_,
                    .ldc = kOut,
                    .c_is_gradient = true,
                    .accumulate = true});
  }
  std::vector<Array> Results() {
    return {memory_.GetAct(y_, kM * kOut), memory_.GetAct(dx_, kM * kIn), memory_.GetF32(dw_, kIn * kOut)};
  }

 private:
  ConformanceMemory memory_;
  void *x_, *w_, *bias_, *dy_, *y_, *dx_;
  float* dw_;
};

absl::StatusOr<Choices> Chosen(Device& device, ChoiceRule rule) {
  Linear(device).Call(*device.survey());
  return device.Choose(rule);
}

}  // namespace

TEST_P(DeviceConformanceTest, ChoicesOfOneDeviceAreFollowedByOthersToTheBit) {
  if (device().survey() == nullptr) {  // nothing to choose
    EXPECT_THAT(device().Choose(ChoiceRule::kFirst), IsOkAndHolds(Choices()));
    EXPECT_THAT(device().Choose(ChoiceRule::kFastest), IsOkAndHolds(Choices()));
    return;
  }
  std::vector<DeviceFactory> others = GetParam().same_bits;
  others.push_back(GetParam().make);
  for (const ChoiceRule rule : {ChoiceRule::kFirst, ChoiceRule::kFastest}) {
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Device> first, GetParam().make(device().arena_bytes()));
    ASSERT_OK_AND_ASSIGN(const Choices choices, Chosen(*first, rule));
    EXPECT_EQ(choices.size(), 3u);
    const std::vector<std::pair<std::string, std::string>> pairs(choices.begin(), choices.end());
    EXPECT_THAT(CheckedChoices(pairs, "choices"), IsOkAndHolds(choices));  // they can travel
    ASSERT_OK(first->Follow(choices));
    Linear linear(*first);
    linear.Call(first->kernels());
    const std::vector<Array> want = linear.Results();
    for (const DeviceFactory& make : others) {
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Device> other, make(device().arena_bytes()));
      Linear again(*other);
      again.Call(*other->survey());
      ASSERT_OK(other->Follow(choices));
      again.Call(other->kernels());
      EXPECT_EQ(again.Results(), want);
    }
  }
}

TEST_P(DeviceConformanceTest, AChoiceThatCannotBeFollowedIsNamed) {
  if (device().survey() == nullptr) {  // and nothing to follow
    EXPECT_OK(device().Follow({{"of another device", "its choice"}}));
    return;
  }
  ASSERT_OK_AND_ASSIGN(const Choices choices, Chosen(device(), ChoiceRule::kFirst));
  for (const auto& [key, value] : choices) {
    Choices bad = choices;
    bad.erase(key);
    EXPECT_THAT(device().Follow(bad), StatusIs(absl::StatusCode::kFailedPrecondition, key));
    for (const std::string& nonsense : {std::string("no such algorithm"), value.substr(1)}) {
      bad[key] = nonsense;
      EXPECT_THAT(device().Follow(bad), StatusIs(absl::StatusCode::kFailedPrecondition, key)) << nonsense;
    }
  }
}

TEST_P(DeviceConformanceTest, WhatWasNotSurveyedIsAnErrorOnceChoicesAreFollowed) {
  const Linear linear(device());
  if (device().survey() == nullptr) {
    ASSERT_OK(device().Follow({}));
    linear.Call(device().kernels());
    EXPECT_OK(device().stream(StreamId::kCompute).Synchronize());
    return;
  }
  linear.CallLast(*device().survey());
  ASSERT_OK_AND_ASSIGN(const Choices choices, device().Choose(ChoiceRule::kFirst));
  ASSERT_OK(device().Follow(choices));
  linear.CallLast(device().kernels());
  ASSERT_OK(device().stream(StreamId::kCompute).Synchronize());
  linear.Call(device().kernels());
  EXPECT_THAT(device().stream(StreamId::kCompute).Synchronize(), StatusIs(absl::StatusCode::kInternal, "surveyed"));
  device().Recover();
}

}  // namespace eps::worker
