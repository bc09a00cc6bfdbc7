#include "gpu_worker/device/cuda/preferences.h"

#include <cmath>
#include <cstdint>

#include "common/spec/preference_config.h"
#include "gpu_worker/device/cuda/device_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/simt.h"
#include "gpu_worker/device/kernels.h"

// A few numbers a row, and a few a sequence: both kernels are latency, once a micro-batch.
namespace eps::worker::cuda {
namespace {

constexpr int kLanes = 16;  // row i of a sequence goes to lane i mod 16; then the lanes in order
constexpr int kScoreThreads = 512, kRowsAtOnce = 4096;
static_assert(kRowsAtOnce % kLanes == 0);

// A block for each sequence.
__global__ void __launch_bounds__(kScoreThreads) ScoreSequencesKernel(ScoreSequencesArgs args) {
  __shared__ double log_probs[kRowsAtOnce];
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * args.T;
  double lane = 0;
  int counted = 0;  // of this thread's rows
  for (int64_t first = 0; first < args.T; first += kRowsAtOnce) {
    const auto rows = static_cast<int>(args.T - first < kRowsAtOnce ? args.T - first : kRowsAtOnce);
    for (int i = static_cast<int>(threadIdx.x); i < rows; i += kScoreThreads) {
      const int64_t row = begin + first + i;
      const int32_t label = args.labels[row];
      const bool counts = label >= 0 && label < args.V;
      double log_prob = 0;
      if (counts) {
        log_prob = static_cast<double>(args.target[row]) - static_cast<double>(args.row_max[row]) -
                   log(static_cast<double>(fabsf(args.row_sum[row])));
      }
      log_probs[i] = log_prob;
      counted += counts ? 1 : 0;
    }
    __syncthreads();
    if (threadIdx.x < kLanes) {
      for (int i = static_cast<int>(threadIdx.x); i < rows; i += kLanes) lane += log_probs[i];
    }
    __syncthreads();
  }
  __shared__ double lanes[kLanes];
  __shared__ int warps[kScoreThreads / kWarpSize];
  if (threadIdx.x < kLanes) lanes[threadIdx.x] = lane;
  counted = WarpSum(counted);
  if (threadIdx.x % kWarpSize == 0) warps[threadIdx.x / kWarpSize] = counted;
  __syncthreads();
  if (threadIdx.x != 0) return;
  SequenceScore score;
  for (int i = 0; i < kLanes; ++i) score.log_prob += lanes[i];
  for (int i = 0; i < kScoreThreads / kWarpSize; ++i) score.counted += warps[i];
  args.scores[blockIdx.x] = score;
}

// -log sigmoid(-z).
__device__ double Softplus(double z) { return fmax(z, 0.0) + log1p(exp(-fabs(z))); }
__device__ double Sigmoid(double z) { return 1 / (1 + exp(-z)); }

// log(p / (1 - p)), where log p is `log_prob`, and how fast that rises with log p; beyond PreferenceConfig::kAlmostCertain
// both are as there.
struct LogOdds {
  __device__ explicit LogOdds(double log_prob) {
    double bounded = log_prob;  // NaN stays NaN
    if (bounded > PreferenceConfig::kAlmostCertain) bounded = PreferenceConfig::kAlmostCertain;
    const double otherwise = -expm1(bounded);  // the probability of all else
    value = bounded - log(otherwise);
    slope = 1 / otherwise;
  }
  double value, slope;
};

// One thread of a warp, as pairs have an order. reference: null where the rule has none.
__global__ void PreferenceLossKernel(int64_t B, PreferenceRule rule, double beta, double margin, double label_smoothing,
                                     double scale, const SequenceScore* scores, const SequenceScore* reference,
                                     float* sequence_scale, LossRecord* to) {
  if (threadIdx.x != 0) return;
  LossRecord record = *to;
  for (int64_t chosen = 0; chosen < B; chosen += 2) {
    const SequenceScore c = scores[chosen], r = scores[chosen + 1];
    float* scales = sequence_scale + chosen;
    if (c.counted == 0 || r.counted == 0) {
      scales[0] = scales[1] = 0;
      continue;
    }
    // How fast z rises with the first one's sum, and falls with the other's.
    double c_weight = beta, r_weight = beta;
    double c_reward = 0, r_reward = 0;
    double better = 0;       // how much the first one is
    double nll_weight = 0;   // in the loss, of minus the first one's sum
    double rank_weight = 1;  // in the loss, of what z gives
    if (reference != nullptr) {
      const double c_more = c.log_prob - reference[chosen].log_prob,
                   r_more = r.log_prob - reference[chosen + 1].log_prob;
      c_reward = c_weight * c_more;
      r_reward = r_weight * r_more;
      better = beta * (c_more - r_more);
    } else {
      c_weight /= static_cast<double>(c.counted);
      r_weight /= static_cast<double>(r.counted);
      c_reward = c_weight * c.log_prob;
      r_reward = r_weight * r.log_prob;
      better = c_reward - r_reward;
    }
    double z = better - margin;
    if (rule == PreferenceRule::kOrpo) {
      nll_weight = 1 / static_cast<double>(c.counted);
      rank_weight = beta;
      const LogOdds c_odds(c.log_prob * nll_weight), r_odds(r.log_prob / static_cast<double>(r.counted));
      z = c_odds.value - r_odds.value;
      c_weight = c_odds.slope * nll_weight;
      r_weight = r_odds.slope / static_cast<double>(r.counted);
    }
    const double e = label_smoothing;
    const double loss = rank_weight * ((1 - e) * Softplus(-z) + e * Softplus(z)) - nll_weight * c.log_prob;
    const double slope = rank_weight * ((1 - e) * Sigmoid(-z) - e * Sigmoid(z));  // how fast the loss falls with z
    scales[0] = static_cast<float>(scale * slope * c_weight + scale * nll_weight);
    scales[1] = static_cast<float>(-scale * slope * r_weight);
    record.loss_sum += loss;
    record.chosen_reward += c_reward;
    record.rejected_reward += r_reward;
    ++record.counted;
    if (!std::isfinite(loss)) {
      record.finite = 0;
    } else if (better > 0) {
      ++record.correct;
    }
  }
  *to = record;
}

}  // namespace

void ScoreSequences(KernelQueue& queue, const ScoreSequencesArgs& args) {
  Launch(queue, "ScoreSequences", {.blocks_x = args.B, .threads = kScoreThreads}, &ScoreSequencesKernel, args);
}

void PreferenceLoss(KernelQueue& queue, const PreferenceLossArgs& args) {
  const PreferenceConfig& rule = args.preferences;
  Launch(queue, "PreferenceLoss", {.blocks_x = 1, .threads = kWarpSize}, &PreferenceLossKernel, args.B, rule.rule,
         rule.beta, rule.margin, rule.label_smoothing, args.scale, args.scores,
         rule.has_reference() ? args.reference : nullptr, args.sequence_scale, args.record);
}

}  // namespace eps::worker::cuda
