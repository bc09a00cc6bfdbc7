#include "gpu_worker/layers/reference_gpt2.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/numeric/philox.h"

namespace eps::worker {
namespace {

using Matrix = std::vector<double>;  // row-major; shapes are beside its uses

int64_t RoundUpTo4(int64_t n) { return (n + 3) / 4 * 4; }

// One dropout of one micro-batch: the factor of an element, 0 or 1 / (1 - rate).
struct Mask {
  double rate = 0;
  RandomKey key;
  int64_t first = 0;  // of the micro-batch, within the vnode

  double Factor(int64_t element) const {
    if (rate == 0) return 1;
    const auto index = static_cast<uint64_t>(first + element);
    const auto bits = Philox(
        key.philox(), {static_cast<uint32_t>(index / 4), static_cast<uint32_t>((index / 4) >> 32), 0, 0})[index % 4];
    return static_cast<double>(bits) >= rate * 4294967296.0 ? 1 / (1 - rate) : 0;
  }
};

// Where a sample stands: all its random numbers depend on.
struct Place {
  uint64_t seed = 0;
  int64_t step = 0;
  int vnode = 0;
  int64_t micro_batch = 0, micro_batches_size = 1, sample = 0;  // the sample's index in its micro-batch of that size
  bool training = true;

  Mask MakeMask(double rate, int layer, int use, int64_t elems_per_sample) const {
    return {training ? rate : 0, RandomKey{seed, step, vnode, layer, use},
            micro_batch * RoundUpTo4(micro_batches_size * elems_per_sample) + sample * elems_per_sample};
  }
};

// A layer's parameters or gradients, by tensor.
struct Slot {
  const ModelSpec& model;
  const LayerSpec& layer;
  Matrix* values;  // laid out as the layer's slot

  double* operator[](absl::string_view suffix) const {
    for (const BlobUse& use : layer.blobs) {
      for (const TensorSpec& tensor : model.blob(use.blob).tensors) {
        if (absl::EndsWith(tensor.name, suffix)) return values->data() + use.offset_elems + tensor.offset_elems;
      }
    }
    EPS_CHECK(false);
  }
};

// y (T, out) = x (T, in) w (in, out) + b
Matrix Linear(const Matrix& x, const double* w, const double* b, int64_t T, int64_t in, int64_t out) {
  Matrix y(static_cast<size_t>(T * out));
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      double sum = b[o];
      for (int64_t i = 0; i < in; ++i) sum += x[static_cast<size_t>(t * in + i)] * w[i * out + o];
      y[static_cast<size_t>(t * out + o)] = sum;
    }
  }
  return y;
}
Matrix LinearBackward(const Matrix& x, const double* w, const Matrix& dy, double* dw, double* db, int64_t T, int64_t in,
                      int64_t out) {
  Matrix dx(static_cast<size_t>(T * in));
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t o = 0; o < out; ++o) {
      const double d = dy[static_cast<size_t>(t * out + o)];
      db[o] += d;
      for (int64_t i = 0; i < in; ++i) {
        dw[i * out + o] += x[static_cast<size_t>(t * in + i)] * d;
        dx[static_cast<size_t>(t * in + i)] += d * w[i * out + o];
      }
    }
  }
  return dx;
}

struct Norm {
  Matrix y, x_hat, rstd;
};
Norm LayerNorm(const Matrix& x, const double* gamma, const double* beta, double eps, int64_t T, int64_t C) {
  Norm n{Matrix(x.size()), Matrix(x.size()), Matrix(static_cast<size_t>(T))};
  for (int64_t t = 0; t < T; ++t) {
    const double* row = x.data() + t * C;
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < C; ++c) mean += row[c];
    mean /= static_cast<double>(C);
    for (int64_t c = 0; c < C; ++c) variance += (row[c] - mean) * (row[c] - mean);
    const double rstd = 1 / std::sqrt(variance / static_cast<double>(C) + eps);
    n.rstd[static_cast<size_t>(t)] = rstd;
    for (int64_t c = 0; c < C; ++c) {
      const auto at = static_cast<size_t>(t * C + c);
      n.x_hat[at] = (row[c] - mean) * rstd;
      n.y[at] = n.x_hat[at] * gamma[c] + beta[c];
    }
  }
  return n;
}
Matrix LayerNormBackward(const Norm& n, const double* gamma, const Matrix& dy, double* dgamma, double* dbeta, int64_t T,
                         int64_t C) {
  Matrix dx(dy.size());
  for (int64_t t = 0; t < T; ++t) {
    double mean = 0, mean_x = 0;
    for (int64_t c = 0; c < C; ++c) {
      const auto at = static_cast<size_t>(t * C + c);
      dgamma[c] += dy[at] * n.x_hat[at];
      dbeta[c] += dy[at];
      mean += dy[at] * gamma[c] / static_cast<double>(C);
      mean_x += dy[at] * gamma[c] * n.x_hat[at] / static_cast<double>(C);
    }
    for (int64_t c = 0; c < C; ++c) {
      const auto at = static_cast<size_t>(t * C + c);
      dx[at] = n.rstd[static_cast<size_t>(t)] * (dy[at] * gamma[c] - mean - n.x_hat[at] * mean_x);
    }
  }
  return dx;
}

double Inside(double x) { return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }
double Gelu(double x) { return 0.5 * x * (1 + std::tanh(Inside(x))); }
double GeluDerivative(double x) {
  const double t = std::tanh(Inside(x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}

void Multiply(Matrix& x, const Mask& mask) {
  for (size_t i = 0; i < x.size(); ++i) x[i] *= mask.Factor(static_cast<int64_t>(i));
}
Matrix Plus(Matrix a, const Matrix& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

struct BlockState {
  Matrix x, qkv, probabilities, o, x_mid, fc, gelu;  // probabilities (H, T, T), before dropout
  Norm ln1, ln2;
};

struct Dims {
  int64_t T, C, H, V;
  double eps;
  int64_t D() const { return C / H; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(D())); }
};

Matrix Attention(const Matrix& qkv, Matrix& p, const Mask& mask, const Dims& d) {
  const int64_t T = d.T, C = d.C, D = d.D();
  p.assign(static_cast<size_t>(d.H * T * T), 0);
  Matrix o(static_cast<size_t>(T * C));
  for (int64_t h = 0; h < d.H; ++h) {
    for (int64_t i = 0; i < T; ++i) {
      const double* q = &qkv[static_cast<size_t>(i * 3 * C + h * D)];
      double* row = &p[static_cast<size_t>((h * T + i) * T)];
      double max = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t j = 0; j <= i; ++j) {
        const double* k = &qkv[static_cast<size_t>(j * 3 * C + C + h * D)];
        for (int64_t e = 0; e < D; ++e) row[j] += q[e] * k[e] * d.scale();
        max = std::max(max, row[j]);
      }
      for (int64_t j = 0; j <= i; ++j) sum += row[j] = std::exp(row[j] - max);
      for (int64_t j = 0; j <= i; ++j) {
        row[j] /= sum;
        const double dropped = row[j] * mask.Factor((h * T + i) * T + j);
        const double* v = &qkv[static_cast<size_t>(j * 3 * C + 2 * C + h * D)];
        for (int64_t e = 0; e < D; ++e) o[static_cast<size_t>(i * C + h * D + e)] += dropped * v[e];
      }
    }
  }
  return o;
}

Matrix AttentionBackward(const Matrix& qkv, const Matrix& p, const Matrix& d_o, const Mask& mask, const Dims& d) {
  const int64_t T = d.T, C = d.C, D = d.D();
  Matrix dqkv(qkv.size());
  for (int64_t h = 0; h < d.H; ++h) {
    for (int64_t i = 0; i < T; ++i) {
      const double* row = &p[static_cast<size_t>((h * T + i) * T)];
      const double* d_out = &d_o[static_cast<size_t>(i * C + h * D)];
      std::vector<double> d_row(static_cast<size_t>(T));
      double weighted = 0;
      for (int64_t j = 0; j <= i; ++j) {
        const double factor = mask.Factor((h * T + i) * T + j);
        const double* v = &qkv[static_cast<size_t>(j * 3 * C + 2 * C + h * D)];
        double* dv = &dqkv[static_cast<size_t>(j * 3 * C + 2 * C + h * D)];
        for (int64_t e = 0; e < D; ++e) {
          d_row[static_cast<size_t>(j)] += d_out[e] * v[e] * factor;
          dv[e] += row[j] * factor * d_out[e];
        }
        weighted += d_row[static_cast<size_t>(j)] * row[j];
      }
      for (int64_t j = 0; j <= i; ++j) {
        const double d_score = row[j] * (d_row[static_cast<size_t>(j)] - weighted) * d.scale();
        for (int64_t e = 0; e < D; ++e) {
          dqkv[static_cast<size_t>(i * 3 * C + h * D + e)] +=
              d_score * qkv[static_cast<size_t>(j * 3 * C + C + h * D + e)];
          dqkv[static_cast<size_t>(j * 3 * C + C + h * D + e)] +=
              d_score * qkv[static_cast<size_t>(i * 3 * C + h * D + e)];
        }
      }
    }
  }
  return dqkv;
}

// One sample through the whole model and back.
class Sample {
 public:
  Sample(const ModelSpec& model, std::vector<Matrix>& parameters, const Place& place, std::vector<int32_t> tokens)
      : model_(model),
        config_(model.config),
        parameters_(parameters),
        place_(place),
        tokens_(std::move(tokens)),
        d_{static_cast<int64_t>(tokens_.size()), config_.d_model, config_.num_heads, config_.vocab,
           config_.layer_norm_eps} {}

  // logits (T, V)
  Matrix Forward() {
    const Slot w = SlotOf(0, parameters_);
    Matrix x(static_cast<size_t>(d_.T * d_.C));
    for (int64_t t = 0; t < d_.T; ++t) {
      for (int64_t c = 0; c < d_.C; ++c) {
        x[static_cast<size_t>(t * d_.C + c)] =
            w["wte.weight"][tokens_[static_cast<size_t>(t)] * d_.C + c] + w["wpe.weight"][t * d_.C + c];
      }
    }
    Multiply(x, EmbeddingMask());
    for (int layer = 1; layer + 1 < num_layers(); ++layer) x = BlockForward(layer, x);
    const Slot head = SlotOf(num_layers() - 1, parameters_);
    ln_f_ = LayerNorm(x, head["ln_f.weight"], head["ln_f.bias"], d_.eps, d_.T, d_.C);
    Matrix logits(static_cast<size_t>(d_.T * d_.V));
    const double* wte = head["wte.weight"];
    for (int64_t t = 0; t < d_.T; ++t) {
      for (int64_t v = 0; v < d_.V; ++v) {
        for (int64_t c = 0; c < d_.C; ++c) {
          logits[static_cast<size_t>(t * d_.V + v)] += ln_f_.y[static_cast<size_t>(t * d_.C + c)] * wte[v * d_.C + c];
        }
      }
    }
    return logits;
  }

  // Adds to `gradients` (by layer). d_logits: (T, V).
  void Backward(const Matrix& d_logits, std::vector<Matrix>& gradients) {
    const int last = num_layers() - 1;
    const Slot head = SlotOf(last, parameters_), d_head = SlotOf(last, gradients);
    Matrix d_normed(static_cast<size_t>(d_.T * d_.C));
    for (int64_t t = 0; t < d_.T; ++t) {
      for (int64_t v = 0; v < d_.V; ++v) {
        const double d = d_logits[static_cast<size_t>(t * d_.V + v)];
        for (int64_t c = 0; c < d_.C; ++c) {
          d_normed[static_cast<size_t>(t * d_.C + c)] += d * head["wte.weight"][v * d_.C + c];
          d_head["wte.weight"][v * d_.C + c] += d * ln_f_.y[static_cast<size_t>(t * d_.C + c)];
        }
      }
    }
    Matrix dx =
        LayerNormBackward(ln_f_, head["ln_f.weight"], d_normed, d_head["ln_f.weight"], d_head["ln_f.bias"], d_.T, d_.C);
    for (int layer = last - 1; layer >= 1; --layer) dx = BlockBackward(layer, dx, gradients);
    Multiply(dx, EmbeddingMask());
    const Slot g = SlotOf(0, gradients);
    for (int64_t t = 0; t < d_.T; ++t) {
      for (int64_t c = 0; c < d_.C; ++c) {
        const double d = dx[static_cast<size_t>(t * d_.C + c)];
        g["wte.weight"][tokens_[static_cast<size_t>(t)] * d_.C + c] += d;
        g["wpe.weight"][t * d_.C + c] += d;
      }
    }
  }

 private:
  int num_layers() const { return static_cast<int>(model_.layers.size()); }
  Slot SlotOf(int layer, std::vector<Matrix>& values) const {
    return {model_, model_.layers[static_cast<size_t>(layer)], &values[static_cast<size_t>(layer)]};
  }
  Mask EmbeddingMask() const { return place_.MakeMask(config_.embedding_dropout, 0, 0, d_.T * d_.C); }
  Mask AttentionMask(int layer) const {
    return place_.MakeMask(config_.attention_dropout, layer, 0, d_.H * d_.T * d_.T);
  }
  Mask ResidualMask(int layer, int use) const {
    return place_.MakeMask(config_.residual_dropout, layer, use, d_.T * d_.C);
  }

  Matrix BlockForward(int layer, const Matrix& x) {
    const Slot w = SlotOf(layer, parameters_);
    const int64_t T = d_.T, C = d_.C;
    BlockState s;
    s.x = x;
    s.ln1 = LayerNorm(x, w["ln_1.weight"], w["ln_1.bias"], d_.eps, T, C);
    s.qkv = Linear(s.ln1.y, w["attn.c_attn.weight"], w["attn.c_attn.bias"], T, C, 3 * C);
    s.o = Attention(s.qkv, s.probabilities, AttentionMask(layer), d_);
    Matrix branch = Linear(s.o, w["attn.c_proj.weight"], w["attn.c_proj.bias"], T, C, C);
    Multiply(branch, ResidualMask(layer, 1));
    s.x_mid = Plus(branch, x);
    s.ln2 = LayerNorm(s.x_mid, w["ln_2.weight"], w["ln_2.bias"], d_.eps, T, C);
    s.fc = Linear(s.ln2.y, w["mlp.c_fc.weight"], w["mlp.c_fc.bias"], T, C, 4 * C);
    for (const double value : s.fc) s.gelu.push_back(Gelu(value));
    branch = Linear(s.gelu, w["mlp.c_proj.weight"], w["mlp.c_proj.bias"], T, 4 * C, C);
    Multiply(branch, ResidualMask(layer, 2));
    Matrix y = Plus(branch, s.x_mid);
    states_.push_back(std::move(s));
    return y;
  }

  Matrix BlockBackward(int layer, const Matrix& dy, std::vector<Matrix>& gradients) {
    const Slot w = SlotOf(layer, parameters_), g = SlotOf(layer, gradients);
    const BlockState& s = states_[static_cast<size_t>(layer - 1)];
    const int64_t T = d_.T, C = d_.C;
    Matrix branch = dy;
    Multiply(branch, ResidualMask(layer, 2));
    Matrix d_fc = LinearBackward(s.gelu, w["mlp.c_proj.weight"], branch, g["mlp.c_proj.weight"], g["mlp.c_proj.bias"],
                                 T, 4 * C, C);
    for (size_t i = 0; i < d_fc.size(); ++i) d_fc[i] *= GeluDerivative(s.fc[i]);
    Matrix d_normed =
        LinearBackward(s.ln2.y, w["mlp.c_fc.weight"], d_fc, g["mlp.c_fc.weight"], g["mlp.c_fc.bias"], T, C, 4 * C);
    const Matrix d_mid =
        Plus(LayerNormBackward(s.ln2, w["ln_2.weight"], d_normed, g["ln_2.weight"], g["ln_2.bias"], T, C), dy);
    branch = d_mid;
    Multiply(branch, ResidualMask(layer, 1));
    const Matrix d_o =
        LinearBackward(s.o, w["attn.c_proj.weight"], branch, g["attn.c_proj.weight"], g["attn.c_proj.bias"], T, C, C);
    const Matrix dqkv = AttentionBackward(s.qkv, s.probabilities, d_o, AttentionMask(layer), d_);
    d_normed = LinearBackward(s.ln1.y, w["attn.c_attn.weight"], dqkv, g["attn.c_attn.weight"], g["attn.c_attn.bias"], T,
                              C, 3 * C);
    return Plus(LayerNormBackward(s.ln1, w["ln_1.weight"], d_normed, g["ln_1.weight"], g["ln_1.bias"], T, C), d_mid);
  }

  const ModelSpec& model_;
  const ModelConfig& config_;
  std::vector<Matrix>& parameters_;
  const Place place_;
  const std::vector<int32_t> tokens_;
  const Dims d_;
  std::vector<BlockState> states_;
  Norm ln_f_;
};

// By layer, laid out as its slot.
std::vector<Matrix> BySlot(const ModelSpec& model, const std::vector<Matrix>& masters) {
  std::vector<Matrix> slots;
  for (const LayerSpec& layer : model.layers) {
    Matrix slot(static_cast<size_t>(layer.num_elems));
    for (const BlobUse& use : layer.blobs) {
      const Matrix& blob = masters[static_cast<size_t>(use.blob.value())];
      std::copy(blob.begin(), blob.end(), slot.begin() + use.offset_elems);
    }
    slots.push_back(std::move(slot));
  }
  return slots;
}

}  // namespace

ReferenceGpt2::ReferenceGpt2(const ModelSpec* model, std::vector<std::vector<double>> masters)
    : model_(*model), masters_(std::move(masters)) {}

ReferenceGpt2::StepResult ReferenceGpt2::Step(const Assignment& assignment, int64_t micro_batch, uint64_t seed) const {
  std::vector<Matrix> parameters = BySlot(model_, masters_);
  StepResult result;
  for (const LayerSpec& layer : model_.layers) result.gradients.emplace_back(static_cast<size_t>(layer.num_elems));
  const int64_t T = model_.config.context, V = model_.config.vocab;
  const double scale = 1 / static_cast<double>(assignment.counted_tokens);
  for (const VnodeBatch& batch : assignment.vnodes) {
    double loss_sum = 0;
    int64_t counted = 0;
    const auto num_samples = static_cast<int64_t>(batch.tokens.size()) / T;
    for (int64_t i = 0; i < num_samples; ++i) {
      const Place place{seed, assignment.step.value(), batch.vnode, i / micro_batch, micro_batch, i % micro_batch};
      Sample sample(model_, parameters, place,
                    std::vector<int32_t>(batch.tokens.begin() + i * T, batch.tokens.begin() + (i + 1) * T));
      Matrix logits = sample.Forward();
      for (int64_t t = 0; t < T; ++t) {
        double* row = logits.data() + t * V;
        const int32_t label = batch.labels[static_cast<size_t>(i * T + t)];
        if (label < 0 || label >= V) {
          std::fill(row, row + V, 0.0);
          continue;
        }
        const double max = *std::max_element(row, row + V);
        double sum = 0;
        for (int64_t v = 0; v < V; ++v) sum += std::exp(row[v] - max);
        loss_sum += max + std::log(sum) - row[label];
        ++counted;
        for (int64_t v = 0; v < V; ++v) row[v] = (std::exp(row[v] - max) / sum - (v == label ? 1 : 0)) * scale;
      }
      sample.Backward(logits, result.gradients);
    }
    result.loss_sum.push_back(loss_sum);
    result.counted.push_back(counted);
    result.mean_loss += loss_sum * scale;
  }
  return result;
}

std::vector<double> ReferenceGpt2::NextTokenLogits(const std::vector<int32_t>& tokens) const {
  std::vector<Matrix> parameters = BySlot(model_, masters_);
  Sample sample(model_, parameters, Place{.training = false}, tokens);
  const Matrix logits = sample.Forward();
  return std::vector<double>(logits.end() - model_.config.vocab, logits.end());
}

}  // namespace eps::worker
