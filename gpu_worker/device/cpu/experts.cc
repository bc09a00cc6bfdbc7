#include "gpu_worker/device/cpu/experts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gpu_worker/device/cpu/vector_targets.h"
#include "gpu_worker/device/dropout_plan.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "gpu_worker/device/cpu/experts.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// After foreach_target.h: this is per target.
#include "gpu_worker/device/cpu/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eps::worker::cpu {
namespace HWY_NAMESPACE {
namespace {

void SumRowsImpl(const SumRowsArgs& args, int64_t begin, int64_t end) {
  const DF d;
  const int64_t C = args.C;
  const float* x = static_cast<const float*>(args.x);
  for (int64_t m = begin; m < end; ++m) {
    const int32_t* rows = args.row + m * args.K;
    const float* residual = args.residual == nullptr ? nullptr : static_cast<const float*>(args.residual) + m * C;
    float* y = static_cast<float*>(args.y) + m * C;
    for (int64_t c = 0; c < C; c += kVecLanes) {
      const int64_t left = C - c;
      VF sum = residual == nullptr ? hn::Zero(d) : LoadTail(d, residual + c, left);
      for (int64_t k = 0; k < args.K; ++k) sum = hn::Add(sum, LoadTail(d, x + rows[k] * C + c, left));
      StoreTail(sum, d, y + c, left);
    }
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace eps::worker::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eps::worker::cpu {

HWY_EXPORT(SumRowsImpl);

namespace {

// The probabilities of one token, into `p`.
void Softmax(const float* logits, int64_t E, double* p) {
  const double max = *std::max_element(logits, logits + E);
  double sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += p[e] = std::exp(static_cast<double>(logits[e]) - max);
  for (int64_t e = 0; e < E; ++e) p[e] /= sum;
}

}  // namespace

void ChooseExperts(const RouteArgs& args, int64_t begin, int64_t end) {
  std::vector<double> p(static_cast<size_t>(args.E));
  std::vector<char> is_chosen(p.size());
  for (int64_t m = begin; m < end; ++m) {
    const float* logits = static_cast<const float*>(args.logits) + m * args.E;
    int32_t* experts = args.routing.expert + m * args.K;
    float* weights = static_cast<float*>(args.scratch) + m * args.K;
    Softmax(logits, args.E, p.data());
    std::fill(is_chosen.begin(), is_chosen.end(), 0);
    double sum = 0;
    for (int64_t k = 0; k < args.K; ++k) {
      int64_t best = -1;
      for (int64_t e = 0; e < args.E; ++e) {  // of those that are no numbers the first stays
        if (!is_chosen[e] && (best < 0 || logits[e] > logits[best])) best = e;
      }
      is_chosen[best] = 1;
      experts[k] = static_cast<int32_t>(best);
      sum += p[best];
    }
    const double scale = args.normalizes ? 1 / sum : 1;
    for (int64_t k = 0; k < args.K; ++k) weights[k] = static_cast<float>(p[experts[k]] * scale);
  }
}

void GroupRows(const RouteArgs& args) {
  const Routing& to = args.routing;
  const int64_t R = args.M * args.K;
  const float* weights = static_cast<const float*>(args.scratch);
  std::fill(to.first_row, to.first_row + args.E + 1, 0);
  for (int64_t i = 0; i < R; ++i) ++to.first_row[to.expert[i] + 1];
  for (int64_t e = 0; e < args.E; ++e) to.first_row[e + 1] += to.first_row[e];
  std::vector<int32_t> next(to.first_row, to.first_row + args.E);
  for (int64_t i = 0; i < R; ++i) {
    const int32_t row = next[to.expert[i]]++;
    to.row[i] = row;
    to.token[row] = static_cast<int32_t>(i / args.K);
    to.weight[row] = weights[i];
  }
}

void RouteBackwardRows(const RouteBackwardArgs& args, int64_t begin, int64_t end) {
  const Routing& routing = args.routing;
  std::vector<double> p(static_cast<size_t>(args.E)), dp(p.size());
  // Of the balance's probabilities: the same for every token.
  std::vector<double> balance(p.size());
  const auto tokens = static_cast<double>(args.M);
  const double scale = static_cast<double>(static_cast<float>(args.balance)) * static_cast<double>(args.E) /
                       (tokens * static_cast<double>(args.K)) / tokens;
  for (int64_t e = 0; e < args.E; ++e) {
    balance[e] = scale * static_cast<double>(routing.first_row[e + 1] - routing.first_row[e]);
  }
  for (int64_t m = begin; m < end; ++m) {
    const float* logits = static_cast<const float*>(args.logits) + m * args.E;
    float* dlogits = static_cast<float*>(args.dlogits) + m * args.E;
    const int32_t *experts = routing.expert + m * args.K, *rows = routing.row + m * args.K;
    Softmax(logits, args.E, p.data());
    // Over their sum the weights are p_e / sum: the gradient of p_e is (g_e - the weighted mean of all g) / sum.
    double sum = 0, mean = 0;
    for (int64_t k = 0; k < args.K; ++k) {
      sum += p[experts[k]];
      mean += p[experts[k]] * static_cast<double>(args.dweight[rows[k]]);
    }
    mean /= sum;
    dp = balance;
    for (int64_t k = 0; k < args.K; ++k) {
      const auto g = static_cast<double>(args.dweight[rows[k]]);
      dp[experts[k]] += args.normalizes ? (g - mean) / sum : g;
    }
    double dot = 0;
    for (int64_t e = 0; e < args.E; ++e) dot += p[e] * dp[e];
    for (int64_t e = 0; e < args.E; ++e) dlogits[e] = static_cast<float>(p[e] * (dp[e] - dot));
  }
}

void GatherRowsRange(const GatherRowsArgs& args, int64_t begin, int64_t end) {
  const float* x = static_cast<const float*>(args.x);
  float* y = static_cast<float*>(args.y);
  for (int64_t r = begin; r < end; ++r) {
    std::memcpy(y + r * args.C, x + args.token[r] * args.C, static_cast<size_t>(args.C) * sizeof(float));
  }
}

void SumRowsRange(const SumRowsArgs& args, int64_t begin, int64_t end) {
  HWY_DYNAMIC_DISPATCH(SumRowsImpl)(args, begin, end);
}

ExpertProducts::ExpertProducts(const ExpertMatMulArgs& args) {
  for (int64_t e = 0; e < args.E; ++e) {
    const int64_t first = args.first_row[e], rows = args.first_row[e + 1] - first;
    if (rows == 0) continue;
    Add({.M = rows,
         .N = args.N,
         .K = args.K,
         .a = static_cast<const float*>(args.a) + first * args.lda,
         .lda = args.lda,
         .b = static_cast<const float*>(args.b) + e * args.b_stride,
         .ldb = args.ldb,
         .trans_b = args.trans_b,
         .c = static_cast<float*>(args.c) + first * args.ldc,
         .ldc = args.ldc,
         .accumulate = args.accumulate});
  }
}

ExpertProducts::ExpertProducts(const ExpertGradientArgs& args) {
  for (int64_t e = 0; e < args.E; ++e) {
    const int64_t first = args.first_row[e], rows = args.first_row[e + 1] - first;
    if (rows == 0 && args.accumulate) continue;
    Add({.M = args.M,
         .N = args.N,
         .K = rows,
         .a = static_cast<const float*>(args.a) + first * args.lda,
         .lda = args.lda,
         .trans_a = true,
         .b = static_cast<const float*>(args.b) + first * args.ldb,
         .ldb = args.ldb,
         .c = args.c + e * args.c_stride,
         .ldc = args.N,
         .c_is_gradient = true,
         .accumulate = args.accumulate});
  }
}

void ExpertProducts::Add(const MatMulArgs& product) {
  products_.push_back(product);
  tilings_.push_back(TileMatMul(product.M, product.N));
  first_tile_.push_back(num_tiles() + tilings_.back().num_tiles());
}

void ExpertProducts::Tile(int64_t tile, float* scratch) const {
  const auto behind = std::upper_bound(first_tile_.begin(), first_tile_.end(), tile);
  const size_t i = static_cast<size_t>(behind - first_tile_.begin()) - 1;
  const MatMulArgs& product = products_[i];
  tile -= first_tile_[i];
  if (product.K > 0) return MatMulTile(product, DropoutPlan(), tilings_[i], tile, scratch);
  // Of no rows oneDNN computes nothing.
  const MatMulTiling& t = tilings_[i];
  const int64_t first = tile / t.tiles_n * t.tile_m, column = tile % t.tiles_n * t.tile_n;
  const auto num_bytes = static_cast<size_t>(std::min(t.tile_n, product.N - column)) * sizeof(float);
  for (int64_t row = first; row < std::min(first + t.tile_m, product.M); ++row) {
    std::memset(static_cast<float*>(product.c) + row * product.ldc + column, 0, num_bytes);
  }
}

}  // namespace eps::worker::cpu
#endif  // HWY_ONCE
