// The loss of pairs of sequences against fp64, and its slopes.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "common/spec/preference_config.h"
#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using reference::Array;

TEST_P(DeviceConformanceTest, ScoresOfSequencesAreSumsOverTheirCountedRows) {
  constexpr int64_t kB = 3, kV = 50;
  for (const int64_t T : {1, 37, 5000}) {  // 5000: more rows than a block of a GPU looks at in one round
    SCOPED_TRACE(T);
    std::mt19937 random(5);
    std::uniform_real_distribution<float> uniform(0.5f, 9.0f);
    std::vector<int32_t> labels;
    std::vector<float> max, sum, target;
    for (int64_t row = 0; row < kB * T; ++row) {
      labels.push_back(row % 5 == 3 ? (row % 2 == 0 ? -100 : int32_t{kV}) : static_cast<int32_t>(row % kV));
      max.push_back(uniform(random));
      sum.push_back(row % 3 == 0 ? -uniform(random) : uniform(random));  // its sign is free
      target.push_back(max.back() - uniform(random));
    }
    ConformanceMemory memory(device());
    auto* scores = static_cast<SequenceScore*>(memory.Alloc(kB * int64_t{sizeof(SequenceScore)}));
    device().kernels().ScoreSequences({.B = kB,
                                       .T = T,
                                       .V = kV,
                                       .labels = memory.Put(labels),
                                       .row_max = memory.Put(max),
                                       .row_sum = memory.Put(sum),
                                       .target = memory.Put(target),
                                       .scores = scores});
    const std::vector<SequenceScore> got = memory.Get<SequenceScore>(scores, kB);
    for (int64_t b = 0; b < kB; ++b) {
      SequenceScore want;
      for (int64_t row = b * T; row < (b + 1) * T; ++row) {
        const auto i = static_cast<size_t>(row);
        if (labels[i] < 0 || labels[i] >= kV) continue;
        want.log_prob += static_cast<double>(target[i]) - static_cast<double>(max[i]) -
                         std::log(std::fabs(static_cast<double>(sum[i])));
        ++want.counted;
      }
      EXPECT_EQ(got[static_cast<size_t>(b)].counted, want.counted);
      EXPECT_NEAR(got[static_cast<size_t>(b)].log_prob, want.log_prob, 1e-12 * static_cast<double>(T) * 10);
    }
  }
}

double RewardOf(const PreferenceConfig& rule, const SequenceScore& score, double reference) {
  return rule.beta *
         (rule.has_reference() ? score.log_prob - reference : score.log_prob / static_cast<double>(score.counted));
}

// Per counted token.
double MeanOf(const SequenceScore& score) { return score.log_prob / static_cast<double>(score.counted); }

double LogOdds(double log_prob) {
  const double bounded = std::min(log_prob, PreferenceConfig::kAlmostCertain);
  return bounded - std::log(-std::expm1(bounded));
}

double LossOf(const PreferenceConfig& rule, const SequenceScore& c, const SequenceScore& r, double c_reference,
              double r_reference) {
  const bool is_orpo = rule.rule == PreferenceRule::kOrpo;
  const double z = is_orpo ? LogOdds(MeanOf(c)) - LogOdds(MeanOf(r))
                           : RewardOf(rule, c, c_reference) - RewardOf(rule, r, r_reference) - rule.margin;
  const auto minus_log_sigmoid = [](double x) {
    return x > 0 ? std::log1p(std::exp(-x)) : std::log1p(std::exp(x)) - x;
  };
  if (is_orpo) return rule.beta * minus_log_sigmoid(z) - MeanOf(c);
  return (1 - rule.label_smoothing) * minus_log_sigmoid(z) + rule.label_smoothing * minus_log_sigmoid(-z);
}

TEST_P(DeviceConformanceTest, APairsLossAndSlopesAreThoseOfItsRule) {
  constexpr double kScale = 0.125;
  const std::vector<SequenceScore> scores = {{-20, 7}, {-31, 9}, {-50, 4}, {-12, 3},      {-7, 0},  {-8, 3},
                                             {-9, 2},  {-9, 2},  {0, 1},   {-9000, 2000}, {-12, 3}, {0, 2}};
  const std::vector<SequenceScore> reference = {{-22, 7}, {-30, 9}, {-40, 4}, {-30, 3},    {-7, 0},  {-8, 3},
                                                {-9, 2},  {-9, 2},  {-5, 1},  {-10, 2000}, {-12, 3}, {-1, 2}};
  const auto B = static_cast<int64_t>(scores.size());
  for (const PreferenceConfig& rule : {PreferenceConfig{.rule = PreferenceRule::kDpo, .beta = 0.1},
                                       {.rule = PreferenceRule::kDpo, .beta = 0.5, .label_smoothing = 0.25},
                                       {.rule = PreferenceRule::kSimPo, .beta = 2, .margin = 0.75},
                                       {.rule = PreferenceRule::kOrpo, .beta = 0.75}}) {
    SCOPED_TRACE(rule.beta);
    ConformanceMemory memory(device());
    auto* scale = static_cast<float*>(memory.Alloc(B * 4));
    LossRecord* record = memory.Put(std::vector<LossRecord>{
        {.loss_sum = 0.5, .counted = 2, .finite = 1, .correct = 1, .chosen_reward = 3, .rejected_reward = -4}});
    device().kernels().PreferenceLoss({.B = B,
                                       .preferences = rule,
                                       .scores = memory.Put(scores),
                                       .reference = rule.has_reference() ? memory.Put(reference) : nullptr,
                                       .scale = kScale,
                                       .sequence_scale = scale,
                                       .record = record});
    const Array got = memory.GetF32(scale, B);
    double loss = 0.5, chosen_reward = 3, rejected_reward = -4;
    int64_t correct = 1;
    for (int64_t chosen = 0; chosen < B; chosen += 2) {
      const auto i = static_cast<size_t>(chosen);
      const SequenceScore &c = scores[i], &r = scores[i + 1];
      if (c.counted == 0) {
        EXPECT_EQ(got[i], 0);
        EXPECT_EQ(got[i + 1], 0);
        continue;
      }
      const auto at = [&](double more_c, double more_r) {
        return LossOf(rule, {c.log_prob + more_c, c.counted}, {r.log_prob + more_r, r.counted}, reference[i].log_prob,
                      reference[i + 1].log_prob);
      };
      loss += at(0, 0);
      const double of_c = RewardOf(rule, c, reference[i].log_prob), of_r = RewardOf(rule, r, reference[i + 1].log_prob);
      chosen_reward += of_c;
      rejected_reward += of_r;
      correct += of_c > of_r ? 1 : 0;
      if (rule.rule == PreferenceRule::kOrpo && (c.log_prob == 0 || r.log_prob == 0)) {
        // One is certain: its odds have a bound, which a difference would cross.
        const double p_c = std::exp(std::min(MeanOf(c), PreferenceConfig::kAlmostCertain)),
                     p_r = std::exp(std::min(MeanOf(r), PreferenceConfig::kAlmostCertain));
        const double both = p_c * (1 - p_r) + p_r * (1 - p_c);
        const double c_slope = (1 + rule.beta * p_r / both) / static_cast<double>(c.counted),
                     r_slope = -rule.beta * p_r * (1 - p_c) / both / (1 - p_r) / static_cast<double>(r.counted);
        EXPECT_NEAR(got[i], kScale * c_slope, 1e-6 * std::abs(kScale * c_slope)) << chosen;
        EXPECT_NEAR(got[i + 1], kScale * r_slope, 1e-6 * std::abs(kScale * r_slope)) << chosen;
        continue;
      }
      // What multiplies softmax - onehot is how the loss falls with a log probability.
      constexpr double kStep = 1e-4;
      EXPECT_NEAR(got[i], -kScale * (at(kStep, 0) - at(-kStep, 0)) / (2 * kStep), 2e-8) << chosen;
      EXPECT_NEAR(got[i + 1], -kScale * (at(0, kStep) - at(0, -kStep)) / (2 * kStep), 2e-8) << chosen;
    }
    const LossRecord sums = memory.Get<LossRecord>(record, 1)[0];
    EXPECT_NEAR(sums.loss_sum, loss, 1e-12 * loss);
    EXPECT_EQ(sums.counted, 2 + B / 2 - 1);
    EXPECT_EQ(sums.correct, correct);
    EXPECT_EQ(sums.finite, 1);
    EXPECT_NEAR(sums.chosen_reward, chosen_reward, 1e-12 * std::abs(chosen_reward));
    EXPECT_NEAR(sums.rejected_reward, rejected_reward, 1e-12 * std::abs(rejected_reward));
  }
}

TEST_P(DeviceConformanceTest, APairOfWhichASequenceIsNoNumberIsToldAsNotFinite) {
  const double kNaN = std::numeric_limits<double>::quiet_NaN();
  const SequenceScore good = {-1, 2}, worse = {-5, 2}, none = {kNaN, 2};
  for (const PreferenceRule rule : {PreferenceRule::kSimPo, PreferenceRule::kOrpo}) {
    for (const auto& [chosen, rejected] : {std::pair(none, worse), std::pair(good, none)}) {
      ConformanceMemory memory(device());
      LossRecord* record = memory.Put(std::vector<LossRecord>{{}});
      device().kernels().PreferenceLoss({.B = 4,
                                         .preferences = {.rule = rule, .beta = 2},
                                         .scores = memory.Put(std::vector{good, worse, chosen, rejected}),
                                         .sequence_scale = static_cast<float*>(memory.Alloc(16)),
                                         .record = record});
      const LossRecord got = memory.Get<LossRecord>(record, 1)[0];
      EXPECT_EQ(got.finite, 0);
      EXPECT_EQ(got.counted, 2);
      EXPECT_EQ(got.correct, 1);
    }
  }
}

TEST_P(DeviceConformanceTest, EachSequenceOfLogitsMayHaveAScaleOfItsOwn) {
  constexpr int64_t kB = 3, kT = 5, kM = kB * kT, kV = 37;
  std::mt19937 random(9);
  const Array logits = RandomArray(random, kM * kV, 3.0);
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < kM; ++i) labels.push_back(i % 4 == 1 ? -100 : static_cast<int32_t>(random() % kV));
  const std::vector<float> scales = {0.5f, -0.25f, 0.0f};
  ConformanceMemory memory(device());
  float* row_max = static_cast<float*>(memory.Alloc(kM * 4));
  float* row_sum = static_cast<float*>(memory.Alloc(kM * 4));
  SoftmaxChunkArgs forward = {.M = kM, .chunk = kV, .ld = kV, .labels = memory.Put(labels)};
  forward.logits = memory.PutAct(logits);
  forward.row_max = row_max;
  forward.row_sum = row_sum;
  forward.target = static_cast<float*>(memory.Alloc(kM * 4));
  device().kernels().SoftmaxChunk(forward);
  const auto backward = [&](double scale, const float* sequence_scale) {
    void* in_place = memory.PutAct(logits);
    device().kernels().SoftmaxChunkBackward({.M = kM,
                                             .chunk = kV,
                                             .V = kV,
                                             .ld = kV,
                                             .logits = in_place,
                                             .labels = forward.labels,
                                             .row_max = row_max,
                                             .row_sum = row_sum,
                                             .scale = scale,
                                             .sequence_scale = sequence_scale,
                                             .T = kT});
    return memory.GetAct(in_place, kM * kV);
  };
  const Array got = backward(77, memory.Put(scales));
  for (int64_t b = 0; b < kB; ++b) {
    const Array want = backward(static_cast<double>(scales[static_cast<size_t>(b)]), nullptr);
    for (int64_t i = b * kT * kV; i < (b + 1) * kT * kV; ++i) {
      ASSERT_EQ(got[static_cast<size_t>(i)], want[static_cast<size_t>(i)]) << "sequence " << b << ", element " << i;
    }
  }
}

}  // namespace
}  // namespace eps::worker
