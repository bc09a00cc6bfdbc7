#include "gpu_worker/device/reference_kernels.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <vector>

#include "common/numeric/philox.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::reference {
namespace {

constexpr double kTwoOverPi = 0.63661977236758134308;
constexpr double kCubic = 0.044715;

}  // namespace

Array DropoutFactors(const Dropout& dropout, int64_t n) {
  Array factors(static_cast<size_t>(n), 1.0);
  if (dropout.rate == 0) return factors;
  for (int64_t i = 0; i < n; ++i) {
    const uint64_t element = static_cast<uint64_t>(dropout.first_element + i);
    const uint64_t counter = element / 4;
    const std::array<uint32_t, 4> words =
        Philox(dropout.key.philox(), {static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0});
    const bool keep = static_cast<double>(words[element % 4]) >= dropout.rate * 4294967296.0;
    factors[i] = keep ? 1.0 / (1.0 - dropout.rate) : 0.0;
  }
  return factors;
}

double Activate(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluTanh:
      return 0.5 * x * (1 + std::tanh(std::sqrt(kTwoOverPi) * (x + kCubic * x * x * x)));
    case Activation::kGelu:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::kTanh:
      return std::tanh(x);
  }
  return x;
}

double ActivationSlope(Activation activation, double x) {
  switch (activation) {
    case Activation::kGeluTanh: {
      const double t = std::tanh(std::sqrt(kTwoOverPi) * (x + kCubic * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(kTwoOverPi) * (1 + 3 * kCubic * x * x);
    }
    case Activation::kGelu:
      return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
    case Activation::kTanh:
      return 1 - std::tanh(x) * std::tanh(x);
  }
  return 1;
}

Array MatMul(const Array& a, bool trans_a, const Array& b, bool trans_b, int64_t M, int64_t N, int64_t K) {
  Array c(static_cast<size_t>(M * N), 0.0);
  for (int64_t i = 0; i < M; ++i) {
    for (int64_t k = 0; k < K; ++k) {
      const double aik = trans_a ? a[k * M + i] : a[i * K + k];
      for (int64_t j = 0; j < N; ++j) c[i * N + j] += aik * (trans_b ? b[j * K + k] : b[k * N + j]);
    }
  }
  return c;
}

LayerNormResult LayerNorm(const Array& x, const Array& gamma, const Array& beta, double eps, int64_t M, int64_t C) {
  LayerNormResult r{Array(M * C), Array(M), Array(M)};
  for (int64_t i = 0; i < M; ++i) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < C; ++c) mean += x[i * C + c] / static_cast<double>(C);
    for (int64_t c = 0; c < C; ++c) variance += std::pow(x[i * C + c] - mean, 2) / static_cast<double>(C);
    r.mean[i] = mean;
    r.rstd[i] = 1 / std::sqrt(variance + eps);
    for (int64_t c = 0; c < C; ++c) r.y[i * C + c] = (x[i * C + c] - mean) * r.rstd[i] * gamma[c] + beta[c];
  }
  return r;
}

LayerNormGradients LayerNormBackward(const Array& dy, const Array& x, const Array& gamma, double eps, int64_t M,
                                     int64_t C) {
  const LayerNormResult f = LayerNorm(x, gamma, Array(C, 0.0), eps, M, C);
  LayerNormGradients r{Array(M * C), Array(C, 0.0), Array(C, 0.0)};
  for (int64_t i = 0; i < M; ++i) {
    double mean_g = 0, mean_gx = 0;
    const auto xhat = [&](int64_t c) { return (x[i * C + c] - f.mean[i]) * f.rstd[i]; };
    for (int64_t c = 0; c < C; ++c) {
      const double g = dy[i * C + c] * gamma[c];
      mean_g += g / static_cast<double>(C);
      mean_gx += g * xhat(c) / static_cast<double>(C);
      r.dgamma[c] += dy[i * C + c] * xhat(c);
      r.dbeta[c] += dy[i * C + c];
    }
    for (int64_t c = 0; c < C; ++c) {
      r.dx[i * C + c] = f.rstd[i] * (dy[i * C + c] * gamma[c] - mean_g - xhat(c) * mean_gx);
    }
  }
  return r;
}

RmsNormResult RmsNorm(const Array& x, const Array& gamma, double eps, int64_t rows, int64_t C) {
  RmsNormResult r{Array(rows * C), Array(rows)};
  for (int64_t i = 0; i < rows; ++i) {
    double mean_square = 0;
    for (int64_t c = 0; c < C; ++c) mean_square += x[i * C + c] * x[i * C + c] / static_cast<double>(C);
    r.rstd[i] = 1 / std::sqrt(mean_square + eps);
    for (int64_t c = 0; c < C; ++c) r.y[i * C + c] = x[i * C + c] * r.rstd[i] * gamma[c];
  }
  return r;
}

RmsNormGradients RmsNormBackward(const Array& dy, const Array& x, const Array& gamma, double eps, int64_t rows,
                                 int64_t C) {
  const RmsNormResult f = RmsNorm(x, gamma, eps, rows, C);
  RmsNormGradients r{Array(rows * C), Array(C, 0.0)};
  for (int64_t i = 0; i < rows; ++i) {
    double mean = 0;
    for (int64_t c = 0; c < C; ++c) {
      const double xhat = x[i * C + c] * f.rstd[i];
      mean += dy[i * C + c] * gamma[c] * xhat / static_cast<double>(C);
      r.dgamma[c] += dy[i * C + c] * xhat;
    }
    for (int64_t c = 0; c < C; ++c) {
      r.dx[i * C + c] = f.rstd[i] * (dy[i * C + c] * gamma[c] - x[i * C + c] * f.rstd[i] * mean);
    }
  }
  return r;
}

Array Swiglu(const Array& gate_up, int64_t M, int64_t F) {
  Array y(M * F);
  for (int64_t i = 0; i < M * F; ++i) {
    const double gate = gate_up[i / F * 2 * F + i % F], up = gate_up[i / F * 2 * F + F + i % F];
    y[i] = gate / (1 + std::exp(-gate)) * up;
  }
  return y;
}

Array SwigluBackward(const Array& dy, const Array& gate_up, int64_t M, int64_t F) {
  Array d(2 * M * F);
  for (int64_t i = 0; i < M * F; ++i) {
    const int64_t at = i / F * 2 * F + i % F;
    const double gate = gate_up[at], up = gate_up[at + F], sigmoid = 1 / (1 + std::exp(-gate));
    d[at] = dy[i] * up * sigmoid * (1 + gate * (1 - sigmoid));
    d[at + F] = dy[i] * gate * sigmoid;
  }
  return d;
}

Array RotaryTable(int64_t T, int64_t D, double theta) {
  Array table(T * D);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t i = 0; i < D / 2; ++i) {
      const double angle =
          static_cast<double>(t) * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(D));
      table[t * D + i] = std::cos(angle);
      table[t * D + D / 2 + i] = std::sin(angle);
    }
  }
  return table;
}

Array Rotary(const Array& x, const Array& table, bool inverse, int64_t T, int64_t heads, int64_t D,
             const std::vector<int32_t>& document_first) {
  Array y(x.size());
  const int64_t half = D / 2, num_heads = static_cast<int64_t>(x.size()) / D;
  for (int64_t head = 0; head < num_heads; ++head) {
    const int64_t row = head / heads, position = row % T - (document_first.empty() ? 0 : document_first[row]);
    const double* angles = table.data() + position * D;
    for (int64_t i = 0; i < half; ++i) {
      const double a = x[head * D + i], b = x[head * D + half + i];
      const double cos = angles[i], sin = inverse ? -angles[half + i] : angles[half + i];
      y[head * D + i] = a * cos - b * sin;
      y[head * D + half + i] = b * cos + a * sin;
    }
  }
  return y;
}

namespace {

// Indices into qkv (B, T, H + 2 kv_heads, D), o (B, T, H, D) and the probabilities (B, H, T, T).
struct Index {
  const AttentionShape& s;
  int64_t Qkv(int64_t b, int64_t t, int64_t head, int64_t e) const {
    return ((b * s.T + t) * (s.H + 2 * s.kv_heads) + head) * s.D + e;
  }
  int64_t Q(int64_t b, int64_t t, int64_t h, int64_t e) const { return Qkv(b, t, h, e); }
  // Of the head that query head h reads.
  int64_t K(int64_t b, int64_t t, int64_t h, int64_t e) const { return Qkv(b, t, s.H + h / (s.H / s.kv_heads), e); }
  int64_t V(int64_t b, int64_t t, int64_t h, int64_t e) const {
    return Qkv(b, t, s.H + s.kv_heads + h / (s.H / s.kv_heads), e);
  }
  int64_t O(int64_t b, int64_t t, int64_t h, int64_t e) const { return ((b * s.T + t) * s.H + h) * s.D + e; }
  int64_t Lse(int64_t b, int64_t h, int64_t t) const { return (b * s.H + h) * s.T + t; }
  int64_t P(int64_t b, int64_t h, int64_t i, int64_t j) const { return Lse(b, h, i) * s.T + j; }

  // The columns that row i of sample b sees: [First, End).
  int64_t First(int64_t b, int64_t i) const {
    const int64_t document = s.document_first.empty() ? 0 : s.document_first[b * s.T + i];
    return s.window == 0 ? document : std::max(document, i - s.window + 1);
  }
  int64_t End(int64_t b, int64_t i) const {
    if (s.causal) return i + 1;
    return s.document_end.empty() ? s.T : s.document_end[b * s.T + i];
  }
};

// The probabilities of one row, (T), of which those that it sees are set; returns the log of its sum.
double SoftmaxRow(const Array& qkv, const Index& at, int64_t b, int64_t h, int64_t i, Array* p) {
  const int64_t first = at.First(b, i), end = at.End(b, i);
  p->assign(at.s.T, 0.0);
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t j = first; j < end; ++j) {
    for (int64_t e = 0; e < at.s.D; ++e) (*p)[j] += qkv[at.Q(b, i, h, e)] * qkv[at.K(b, j, h, e)];
    (*p)[j] *= at.s.scale;
    max = std::max(max, (*p)[j]);
  }
  double sum = 0;
  for (int64_t j = first; j < end; ++j) sum += (*p)[j] = std::exp((*p)[j] - max);
  for (int64_t j = first; j < end; ++j) (*p)[j] /= sum;
  return max + std::log(sum);
}

}  // namespace

AttentionResult Attention(const Array& qkv, const AttentionShape& s, const Array& factors) {
  AttentionResult r{Array(s.B * s.T * s.H * s.D, 0.0), Array(s.B * s.H * s.T)};
  const Index at{s};
  Array p;
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t i = 0; i < s.T; ++i) {
        r.lse[at.Lse(b, h, i)] = SoftmaxRow(qkv, at, b, h, i, &p);
        for (int64_t j = at.First(b, i); j < at.End(b, i); ++j) {
          const double factor = factors.empty() ? 1.0 : factors[at.P(b, h, i, j)];
          for (int64_t e = 0; e < s.D; ++e) r.o[at.O(b, i, h, e)] += p[j] * factor * qkv[at.V(b, j, h, e)];
        }
      }
    }
  }
  return r;
}

Array AttentionBackward(const Array& qkv, const Array& d_o, const AttentionShape& s, const Array& factors) {
  Array dqkv(qkv.size(), 0.0);
  const Index at{s};
  Array p, dp;
  for (int64_t b = 0; b < s.B; ++b) {
    for (int64_t h = 0; h < s.H; ++h) {
      for (int64_t i = 0; i < s.T; ++i) {
        SoftmaxRow(qkv, at, b, h, i, &p);
        dp.assign(s.T, 0.0);
        double dot = 0;
        for (int64_t j = at.First(b, i); j < at.End(b, i); ++j) {
          const double factor = factors.empty() ? 1.0 : factors[at.P(b, h, i, j)];
          for (int64_t e = 0; e < s.D; ++e) {
            dp[j] += d_o[at.O(b, i, h, e)] * qkv[at.V(b, j, h, e)] * factor;
            dqkv[at.V(b, j, h, e)] += p[j] * factor * d_o[at.O(b, i, h, e)];
          }
          dot += p[j] * dp[j];
        }
        for (int64_t j = at.First(b, i); j < at.End(b, i); ++j) {
          const double ds = p[j] * (dp[j] - dot) * s.scale;
          for (int64_t e = 0; e < s.D; ++e) {
            dqkv[at.Q(b, i, h, e)] += ds * qkv[at.K(b, j, h, e)];
            dqkv[at.K(b, j, h, e)] += ds * qkv[at.Q(b, i, h, e)];
          }
        }
      }
    }
  }
  return dqkv;
}

namespace {

double LogSum(const Array& logits, int64_t row, int64_t V) {
  double max = -std::numeric_limits<double>::infinity(), sum = 0;
  for (int64_t v = 0; v < V; ++v) max = std::max(max, logits[row * V + v]);
  for (int64_t v = 0; v < V; ++v) sum += std::exp(logits[row * V + v] - max);
  return max + std::log(sum);
}

}  // namespace

double CrossEntropy(const Array& logits, const std::vector<int32_t>& labels, int64_t M, int64_t V) {
  double loss = 0;
  for (int64_t i = 0; i < M; ++i) {
    if (labels[i] >= 0 && labels[i] < V) loss += LogSum(logits, i, V) - logits[i * V + labels[i]];
  }
  return loss;
}

int64_t CorrectRows(const Array& logits, const std::vector<int32_t>& labels, int64_t M, int64_t V) {
  int64_t correct = 0;
  for (int64_t i = 0; i < M; ++i) {
    const auto row = logits.begin() + i * V;
    correct += std::max_element(row, row + V) - row == labels[i];  // the first of the largest
  }
  return correct;
}

Array CrossEntropyGradient(const Array& logits, const std::vector<int32_t>& labels, int64_t M, int64_t V,
                           double scale) {
  Array d(logits.size(), 0.0);
  for (int64_t i = 0; i < M; ++i) {
    if (labels[i] < 0 || labels[i] >= V) continue;
    const double log_sum = LogSum(logits, i, V);
    for (int64_t v = 0; v < V; ++v) {
      d[i * V + v] = scale * (std::exp(logits[i * V + v] - log_sum) - (v == labels[i] ? 1.0 : 0.0));
    }
  }
  return d;
}

}  // namespace eps::worker::reference
