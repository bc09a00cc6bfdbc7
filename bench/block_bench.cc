// Where the time of one transformer block goes: the kernels of its forward and backward pass on the
// cpu device, in their order, each timed alone. Then the gradients of its weights as a vnode's first micro-batch makes them,
// written, against zeros that are added to. Medians over rounds.
//
//   block_bench [C] [H] [T] [B] [threads] [rounds]     384 6 256 16 2 7 by default

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/support.h"
#include "common/base/median.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "nlohmann/json.hpp"

namespace eps::worker {
namespace {

struct Shape {
  int64_t C, H, T, B;
  int64_t M() const { return B * T; }
};

struct Kernel {
  std::string name;
  double flops;  // 0 where bytes are the limit
  std::function<void()> launch;
};

class BlockBench {
 public:
  BlockBench(Device& device, const Shape& shape) : device_(device), k_(device.kernels()), s_(shape) {
    const int64_t M = s_.M(), C = s_.C;
    x_ = Take(M * C), normed_ = Take(M * C), qkv_ = Take(3 * M * C), o_ = Take(M * C), mid_ = Take(M * C);
    fc_ = Take(4 * M * C), gelu_ = Take(4 * M * C), y_ = Take(M * C), lse_ = Take(M * s_.H), mean_ = Take(M);
    rstd_ = Take(M), d_ = Take(M * C), d_wide_ = Take(4 * M * C), d_qkv_ = Take(3 * M * C), gamma_ = Take(C);
    w_ = Take(4 * C * C), dw_ = Take(4 * C * C), bias_ = Take(4 * C), db_ = Take(4 * C);
    gradient_ = Take(12 * C * C);
    const KernelSizes sizes = CpuKernelSizes();
    scratch_ = Take(std::max(sizes.layer_norm_backward(M, C), sizes.column_sum(M, 4 * C)) / 4);
  }

  std::vector<Kernel> Kernels() {
    std::vector<Kernel> list;
    const double M = static_cast<double>(s_.M()), C = static_cast<double>(s_.C);
    const auto linear = [&](const char* name, float* x, int64_t in, int64_t out, float* y,
                            MatMulArgs::Epilogue epilogue) {
      list.push_back({name, 2 * M * static_cast<double>(in * out), [=, this] {
                        k_.MatMul({.M = s_.M(),
                                   .N = out,
                                   .K = in,
                                   .a = x,
                                   .lda = in,
                                   .b = w_,
                                   .ldb = out,
                                   .c = y,
                                   .ldc = out,
                                   .bias = bias_,
                                   .epilogue = epilogue,
                                   .activated = gelu_,
                                   .residual = x_});
                      }});
    };
    const auto backward = [&](const std::string& name, float* x, float* dy, int64_t in, int64_t out, float* dx,
                              bool has_bias = true) {
      list.push_back({name + " dx", 2 * M * static_cast<double>(in * out), [=, this] {
                        k_.MatMul({.M = s_.M(),
                                   .N = in,
                                   .K = out,
                                   .a = dy,
                                   .lda = out,
                                   .b = w_,
                                   .ldb = out,
                                   .trans_b = true,
                                   .c = dx,
                                   .ldc = in});
                      }});
      list.push_back({name + " dw", 2 * M * static_cast<double>(in * out),
                      [=, this] { WeightGradient(x, in, dy, out, dw_, /*adds=*/true); }});
      if (!has_bias) return;
      list.push_back({name + " db", 0,
                      [=, this] {
                        k_.ColumnSum({.M = s_.M(), .N = out, .ld = out, .x = dy, .out = db_, .scratch = scratch_});
                      }});
    };
    const auto norm = [&](const char* name, float* x) {
      list.push_back({name, 0, [=, this] {
                        k_.LayerNorm({.M = s_.M(),
                                      .C = s_.C,
                                      .x = x,
                                      .gamma = gamma_,
                                      .beta = bias_,
                                      .y = normed_,
                                      .mean = mean_,
                                      .rstd = rstd_});
                      }});
    };
    const auto norm_backward = [&](const char* name, float* x) {
      list.push_back({std::string(name) + " again", 0, [=, this] {
                        k_.LayerNormApply({.M = s_.M(),
                                           .C = s_.C,
                                           .x = x,
                                           .gamma = gamma_,
                                           .beta = bias_,
                                           .mean = mean_,
                                           .rstd = rstd_,
                                           .y = normed_});
                      }});
      list.push_back({std::string(name) + " backward", 0, [=, this] {
                        k_.LayerNormBackward({.M = s_.M(),
                                              .C = s_.C,
                                              .dy = d_wide_,
                                              .x = x,
                                              .gamma = gamma_,
                                              .mean = mean_,
                                              .rstd = rstd_,
                                              .dresidual = d_,
                                              .dx = y_,
                                              .dgamma = dw_,
                                              .dbeta = db_,
                                              .scratch = scratch_});
                      }});
    };
    const int64_t c = s_.C, D = s_.C / s_.H;
    const double scale = 1 / std::sqrt(static_cast<double>(D));
    const double half_scores = M * C * static_cast<double>(s_.T);  // a product of half the scores: M * T / 2 * C * 2
    norm("ln1", x_);
    linear("qkv", normed_, c, 3 * c, qkv_, MatMulArgs::Epilogue::kNone);
    list.push_back({"attention", 2 * half_scores, [=, this] {
                      k_.Attention({.B = s_.B,
                                    .T = s_.T,
                                    .H = s_.H,
                                    .kv_heads = s_.H,
                                    .D = D,
                                    .qkv = qkv_,
                                    .o = o_,
                                    .lse = lse_,
                                    .scale = scale});
                    }});
    linear("attention proj", o_, c, c, mid_, MatMulArgs::Epilogue::kResidual);
    norm("ln2", mid_);
    linear("fc + gelu", normed_, c, 4 * c, fc_, MatMulArgs::Epilogue::kActivation);
    linear("mlp proj", gelu_, 4 * c, c, y_, MatMulArgs::Epilogue::kResidual);
    backward("mlp proj", gelu_, d_, 4 * c, c, d_wide_);
    list.push_back({"gelu backward", 0, [=, this] {
                      k_.ActivationBackward({.M = s_.M(),
                                             .N = 4 * c,
                                             .x = fc_,
                                             .dy = d_wide_,
                                             .activated = gelu_,
                                             .dbias = db_,
                                             .scratch = scratch_});
                    }});
    backward("fc", normed_, d_wide_, c, 4 * c, y_, /*has_bias=*/false);  // gelu's backward made its gradient
    norm_backward("ln2", mid_);
    backward("attention proj", o_, d_, c, c, y_);
    list.push_back({"attention backward", 5 * half_scores, [=, this] {
                      k_.AttentionBackward({.B = s_.B,
                                            .T = s_.T,
                                            .H = s_.H,
                                            .kv_heads = s_.H,
                                            .D = D,
                                            .qkv = qkv_,
                                            .o = o_,
                                            .lse = lse_,
                                            .d_o = d_,
                                            .dqkv = d_qkv_,
                                            .scale = scale});
                    }});
    backward("qkv", normed_, d_qkv_, c, 3 * c, y_);
    norm_backward("ln1", x_);
    return list;
  }

  // Those of all four weights.
  void FirstGradients(bool writes) {
    const int64_t C = s_.C;
    if (!writes) k_.FillZero({.num_bytes = 12 * C * C * int64_t{sizeof(float)}, .dst = gradient_});
    float* to = gradient_;
    const auto product = [&](const float* x, int64_t in, const float* dy, int64_t out) {
      WeightGradient(x, in, dy, out, std::exchange(to, to + in * out), /*adds=*/!writes);
    };
    product(gelu_, 4 * C, d_, C);
    product(normed_, C, d_wide_, 4 * C);
    product(o_, C, d_, C);
    product(normed_, C, d_qkv_, 3 * C);
  }

  static int64_t ArenaBytes(const Shape& s) { return 4 * (30 * s.M() * s.C + 52 * s.C * s.C + 1000 * s.C) + (1 << 22); }

 private:
  // Of a weight (in, out): x^T dy.
  void WeightGradient(const float* x, int64_t in, const float* dy, int64_t out, float* to, bool adds) {
    k_.MatMul({.M = in,
               .N = out,
               .K = s_.M(),
               .a = x,
               .lda = in,
               .trans_a = true,
               .b = dy,
               .ldb = out,
               .c = to,
               .ldc = out,
               .c_is_gradient = true,
               .accumulate = adds});
  }
  // Filled with small numbers, as weights and gradients are.
  float* Take(int64_t n) {
    const int64_t num_bytes = (n * 4 + kArenaAlignBytes - 1) / kArenaAlignBytes * kArenaAlignBytes;
    float* p = static_cast<float*>(device_.Address({used_bytes_, num_bytes}).value());
    used_bytes_ += num_bytes;
    for (int64_t i = 0; i < n; ++i) p[i] = static_cast<float>((i * 2654435761u >> 8) % 1000) * 1e-4f - 0.05f;
    return p;
  }

  Device& device_;
  eps::worker::Kernels& k_;
  const Shape s_;
  int64_t used_bytes_ = 0;
  float *x_, *normed_, *qkv_, *o_, *mid_, *fc_, *gelu_, *y_, *lse_, *mean_, *rstd_, *d_, *d_wide_, *d_qkv_, *gamma_,
      *w_, *dw_, *bias_, *db_, *gradient_, *scratch_;
};

int Run(const Shape& shape, int threads, int rounds) {
  absl::StatusOr<std::unique_ptr<Device>> device =
      NewCpuDevice({.arena_bytes = BlockBench::ArenaBytes(shape), .threads = threads});
  if (!device.ok()) {
    std::fprintf(stderr, "%s\n", std::string(device.status().ToString()).c_str());
    return 1;
  }
  BlockBench bench(**device, shape);
  const std::vector<Kernel> kernels = bench.Kernels();
  Stream& compute = (*device)->stream(StreamId::kCompute);
  std::vector<std::vector<double>> seconds(kernels.size());
  std::vector<double> added, written;
  for (int round = 0; round <= rounds; ++round) {  // the first only warms up
    bool ok = true;
    const auto measure = [&](const std::function<void()>& launch, std::vector<double>& to) {
      const auto start = std::chrono::steady_clock::now();
      launch();
      ok &= compute.Synchronize().ok();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      if (round > 0) to.push_back(elapsed.count());
    };
    for (size_t i = 0; i < kernels.size(); ++i) measure(kernels[i].launch, seconds[i]);
    measure([&] { bench.FirstGradients(/*writes=*/false); }, added);
    measure([&] { bench.FirstGradients(/*writes=*/true); }, written);
    if (!ok) return 1;
  }
  double total = 0;
  for (size_t i = 0; i < kernels.size(); ++i) total += Median(seconds[i]);
  std::printf("%s, %d threads; C %ld H %ld T %ld B %ld\n", (*device)->properties().model.c_str(), threads,
              static_cast<long>(shape.C), static_cast<long>(shape.H), static_cast<long>(shape.T),
              static_cast<long>(shape.B));
  std::printf("%-20s %10s %7s %9s\n", "kernel", "ms", "share", "GFLOP/s");
  nlohmann::json shares;
  for (size_t i = 0; i < kernels.size(); ++i) {
    const double s = Median(seconds[i]);
    shares[kernels[i].name] = s / total;
    std::printf("%-20s %10.3f %6.1f%%", kernels[i].name.c_str(), 1e3 * s, 100 * s / total);
    if (kernels[i].flops > 0) std::printf(" %9.1f", kernels[i].flops / s * 1e-9);
    std::printf("\n");
  }
  const double tokens_per_second = static_cast<double>(shape.M()) / total;
  std::printf("%-20s %10.3f          tokens/s of one block: %.0f\n", "total", 1e3 * total, tokens_per_second);
  const double ratio = Median(added) / Median(written);
  std::printf("gradients of weights, a vnode's first: zeroed and added to %.3f ms, written %.3f ms, ratio %.3f\n",
              1e3 * Median(added), 1e3 * Median(written), ratio);
  const nlohmann::json line = {{"name", "block"},
                               {"threads", threads},
                               {"C", shape.C},
                               {"T", shape.T},
                               {"B", shape.B},
                               {"seconds", total},
                               {"tokens_per_second_of_one_block", tokens_per_second},
                               {"shares", shares},
                               {"zeroed_and_added_over_written", ratio}};
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace eps::worker

int main(int argc, char** argv) {
  const auto number = [&](int i, int64_t otherwise) { return i < argc ? std::atoll(argv[i]) : otherwise; };
  return eps::worker::Run({.C = number(1, 384), .H = number(2, 6), .T = number(3, 256), .B = number(4, 16)},
                          static_cast<int>(number(5, 2)), static_cast<int>(number(6, 7)));
}
