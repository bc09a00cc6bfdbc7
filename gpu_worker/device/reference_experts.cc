#include "gpu_worker/device/reference_experts.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace eps::worker::reference {
namespace {

// Of token m.
Array Probabilities(const Array& logits, int64_t m, int64_t E) {
  Array p(logits.begin() + m * E, logits.begin() + (m + 1) * E);
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - max);
  for (double& x : p) x /= sum;
  return p;
}

double SumOfChosen(const Array& p, const int32_t* experts, int64_t K) {
  return std::accumulate(experts, experts + K, 0.0, [&](double sum, int32_t e) { return sum + p[e]; });
}

Array Part(const Array& x, int64_t first, int64_t count) { return Array(x.begin() + first, x.begin() + first + count); }

}  // namespace

Routed Route(const Array& logits, int64_t M, int64_t E, int64_t K, bool normalizes) {
  Routed routed;
  std::vector<std::vector<int64_t>> chosen(E);  // indices of (M, K)
  for (int64_t m = 0; m < M; ++m) {
    std::vector<int32_t> order(E);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return logits[m * E + a] > logits[m * E + b]; });
    for (int64_t k = 0; k < K; ++k) {
      routed.expert.push_back(order[k]);
      chosen[order[k]].push_back(m * K + k);
    }
  }
  routed.row.resize(M * K);
  for (int64_t e = 0; e < E; ++e) {
    routed.first_row.push_back(static_cast<int32_t>(routed.token.size()));
    for (const int64_t i : chosen[e]) {
      const int64_t m = i / K;
      const Array p = Probabilities(logits, m, E);
      routed.row[i] = static_cast<int32_t>(routed.token.size());
      routed.token.push_back(static_cast<int32_t>(m));
      routed.weight.push_back(p[e] / (normalizes ? SumOfChosen(p, routed.expert.data() + m * K, K) : 1));
    }
  }
  routed.first_row.push_back(static_cast<int32_t>(M * K));
  return routed;
}

double RoutedLoss(const Array& logits, const Routed& routed, int64_t M, int64_t E, int64_t K, bool normalizes,
                  const Array& dweight, double balance) {
  double loss = 0;
  Array mean(E, 0.0);
  for (int64_t m = 0; m < M; ++m) {
    const Array p = Probabilities(logits, m, E);
    const int32_t* experts = routed.expert.data() + m * K;
    const double sum = normalizes ? SumOfChosen(p, experts, K) : 1;
    for (int64_t k = 0; k < K; ++k) loss += dweight[routed.row[m * K + k]] * p[experts[k]] / sum;
    for (int64_t e = 0; e < E; ++e) mean[e] += p[e] / static_cast<double>(M);
  }
  for (int64_t e = 0; e < E; ++e) {
    const double share =
        static_cast<double>(routed.first_row[e + 1] - routed.first_row[e]) / static_cast<double>(M * K);
    loss += balance * static_cast<double>(E) * share * mean[e];
  }
  return loss;
}

Array RouteBackward(const Array& logits, const Routed& routed, int64_t M, int64_t E, int64_t K, bool normalizes,
                    const Array& dweight, double balance) {
  Array d(M * E);
  for (int64_t m = 0; m < M; ++m) {
    const Array p = Probabilities(logits, m, E);
    const int32_t* experts = routed.expert.data() + m * K;
    const double sum = normalizes ? SumOfChosen(p, experts, K) : 1;
    Array dp(E);
    for (int64_t e = 0; e < E; ++e) {
      const double share =
          static_cast<double>(routed.first_row[e + 1] - routed.first_row[e]) / static_cast<double>(M * K);
      dp[e] = balance * static_cast<double>(E) * share / static_cast<double>(M);
    }
    double of_sum = 0;
    for (int64_t k = 0; k < K; ++k) {
      const double g = dweight[routed.row[m * K + k]];
      dp[experts[k]] += g / sum;
      of_sum += g * p[experts[k]] / (sum * sum);
    }
    for (int64_t k = 0; k < K && normalizes; ++k) dp[experts[k]] -= of_sum;
    const double dot = std::inner_product(p.begin(), p.end(), dp.begin(), 0.0);
    for (int64_t e = 0; e < E; ++e) d[m * E + e] = p[e] * (dp[e] - dot);
  }
  return d;
}

Array ExpertMatMul(const Array& a, const std::vector<int32_t>& first_row, const Array& b, bool trans_b, int64_t N,
                   int64_t K) {
  Array c;
  for (size_t e = 0; e + 1 < first_row.size(); ++e) {
    const int64_t first = first_row[e], rows = first_row[e + 1] - first;
    const Array part = MatMul(Part(a, first * K, rows * K), false, Part(b, static_cast<int64_t>(e) * K * N, K * N),
                              trans_b, rows, N, K);
    c.insert(c.end(), part.begin(), part.end());
  }
  return c;
}

Array ExpertGradient(const Array& a, const std::vector<int32_t>& first_row, const Array& b, int64_t M, int64_t N) {
  Array c;
  for (size_t e = 0; e + 1 < first_row.size(); ++e) {
    const int64_t first = first_row[e], rows = first_row[e + 1] - first;
    const Array part = MatMul(Part(a, first * M, rows * M), true, Part(b, first * N, rows * N), false, M, N, rows);
    c.insert(c.end(), part.begin(), part.end());
  }
  return c;
}

}  // namespace eps::worker::reference
