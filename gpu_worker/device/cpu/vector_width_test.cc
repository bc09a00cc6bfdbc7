// The kernels' own vector code gives the same bits with AVX2 as with AVX-512
// (docs/notation.md): 16 logical lanes whatever the width, one chain of fused multiply-adds per element of
// a product. (oneDNN's products promise no such thing, and are named in DeviceProperties::model.)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cpu/vector_targets.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace eps::worker {
namespace {

// Arrays in the arena of a device that the host can address.
class Arrays {
 public:
  explicit Arrays(Device& device) : device_(device) {}
  float* Filled(int64_t n, uint32_t seed) {
    float* p = Zero(n);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) p[i] = normal(random);
    return p;
  }
  float* Zero(int64_t n) {
    const int64_t num_bytes = (n * 4 + kArenaAlignBytes - 1) / kArenaAlignBytes * kArenaAlignBytes;
    float* p = static_cast<float*>(device_.Address({used_bytes_, num_bytes}).value());
    used_bytes_ += num_bytes;
    std::memset(p, 0, static_cast<size_t>(num_bytes));
    return p;
  }
  std::vector<float> All() {
    const float* p = static_cast<const float*>(device_.Address({0, used_bytes_}).value());
    return std::vector<float>(p, p + used_bytes_ / 4);
  }

 private:
  Device& device_;
  int64_t used_bytes_ = 0;
};

// All kernels but MatMul, which is left to its epilogues, on sizes with tails. The whole arena
// afterwards.
std::vector<float> RunKernels() {
  std::unique_ptr<Device> device = NewCpuDevice({.arena_bytes = int64_t{32} << 20, .threads = 1}).value();
  Arrays a(*device);
  Kernels& k = device->kernels();
  const KernelSizes sizes = CpuKernelSizes();
  const int64_t M = 70, C = 101, B = 2, T = 131, H = 2, D = 37, V = 203;
  const Dropout dropout = {.rate = 0.2, .key = {.seed = 1, .step = 2}, .first_element = 8};

  float *x = a.Filled(M * C, 1), *gamma = a.Filled(C, 2), *beta = a.Filled(C, 3), *mean = a.Zero(M), *rstd = a.Zero(M);
  k.LayerNorm({.M = M, .C = C, .x = x, .gamma = gamma, .beta = beta, .y = a.Zero(M * C), .mean = mean, .rstd = rstd});
  k.LayerNormBackward({.M = M,
                       .C = C,
                       .dy = a.Filled(M * C, 4),
                       .x = x,
                       .gamma = gamma,
                       .mean = mean,
                       .rstd = rstd,
                       .dx = a.Zero(M * C),
                       .dgamma = a.Zero(C),
                       .dbeta = a.Zero(C),
                       .scratch = a.Zero(sizes.layer_norm_backward(M, C) / 4)});
  float* head_rstd = a.Zero(M * 3);
  k.RmsNorm({.M = M,
             .heads = 3,
             .C = 29,
             .ldx = C,
             .ldy = 90,
             .x = x,
             .gamma = gamma,
             .y = a.Zero(M * 90),
             .rstd = head_rstd});
  k.RmsNormBackward({.M = M,
                     .heads = 3,
                     .C = 29,
                     .lddy = C,
                     .ldx = C,
                     .lddx = 90,
                     .dy = a.Filled(M * C, 12),
                     .x = x,
                     .gamma = gamma,
                     .rstd = head_rstd,
                     .dx = a.Zero(M * 90),
                     .dgamma = a.Zero(29),
                     .scratch = a.Zero(sizes.rms_norm_backward(M * 3, 29) / 4)});
  k.Swiglu({.M = M / 2, .F = C, .gate_up = x, .y = a.Zero(M * C)});
  k.SwigluBackward(
      {.M = M / 2, .F = C, .gate_up = x, .dy = a.Filled(M * C, 13), .dgate_up = a.Zero(M * C), .y = a.Zero(M * C)});
  k.Swiglu({.M = M / 2, .F = C, .gate_up = x, .weight = a.Filled(M / 2, 16), .y = a.Zero(M * C)});
  k.SwigluBackward({.M = M / 2,
                    .F = C,
                    .gate_up = x,
                    .weight = a.Filled(M / 2, 16),
                    .dy = a.Filled(M * C, 13),
                    .dgate_up = a.Zero(M * C),
                    .y = a.Zero(M * C),
                    .dweight = a.Zero(M / 2)});
  auto* rows = reinterpret_cast<int32_t*>(a.Zero(M));
  for (int64_t i = 0; i < M / 2 * 2; ++i) rows[i] = static_cast<int32_t>(M - 1 - i);
  k.SumRows({.M = M / 2, .K = 2, .C = C, .row = rows, .x = x, .residual = a.Filled(M * C, 17), .y = a.Zero(M * C)});
  k.Rotary({.M = M, .T = 9, .heads = 2, .D = 46, .ld = C, .x = a.Filled(M * C, 14), .table = a.Filled(9 * 46, 15)});
  k.ColumnSum({.M = M, .N = C, .ld = C, .x = x, .out = a.Zero(C), .scratch = a.Zero(sizes.column_sum(M, C) / 4)});

  const int64_t n = B * T * H * D;
  struct Attended {
    double dropout;
    int64_t kv_heads = H;
    bool causal = true;
    int64_t window = 0;
    Documents documents = {};
  };
  // Documents that end within tiles.
  const int64_t tokens = 29;
  auto *first = reinterpret_cast<int32_t*>(a.Zero(B * T)), *end = reinterpret_cast<int32_t*>(a.Zero(B * T));
  for (int64_t i = 0; i < B * T; ++i) {
    const int64_t begins = i % T / tokens * tokens;
    first[i] = static_cast<int32_t>(begins), end[i] = static_cast<int32_t>(std::min(begins + tokens, T));
  }
  const Documents documents = {.first = first, .end = end};
  for (const Attended& t : {Attended{0}, Attended{0.2}, Attended{0.2, 1, false}, Attended{0, 1, true, 50},
                            Attended{0, 1, true, 0, documents}, Attended{0.2, 2, false, 0, documents}}) {
    Dropout drop = dropout;
    drop.rate = t.dropout;
    const int64_t qkv_elems = B * T * (H + 2 * t.kv_heads) * D;
    float *qkv = a.Filled(qkv_elems, 5), *o = a.Zero(n), *lse = a.Zero(B * H * T);
    k.Attention({.B = B,
                 .T = T,
                 .H = H,
                 .kv_heads = t.kv_heads,
                 .D = D,
                 .qkv = qkv,
                 .o = o,
                 .lse = lse,
                 .scale = 0.2,
                 .causal = t.causal,
                 .window = t.window,
                 .documents = t.documents,
                 .dropout = drop});
    k.AttentionBackward({.B = B,
                         .T = T,
                         .H = H,
                         .kv_heads = t.kv_heads,
                         .D = D,
                         .qkv = qkv,
                         .o = o,
                         .lse = lse,
                         .d_o = a.Filled(n, 6),
                         .dqkv = a.Zero(qkv_elems),
                         .scale = 0.2,
                         .causal = t.causal,
                         .window = t.window,
                         .documents = t.documents,
                         .dropout = drop});
  }

  for (const Activation activation : {Activation::kGeluTanh, Activation::kGelu, Activation::kTanh}) {
    k.ActivationBackward({.M = M,
                          .N = C,
                          .activation = activation,
                          .x = x,
                          .dy = a.Filled(M * C, 7),
                          .activated = a.Zero(M * C),
                          .dbias = a.Zero(C),
                          .scratch = a.Zero(sizes.column_sum(M, C) / 4)});
  }
  k.ApplyDropout({.n = M * C, .x = x, .y = a.Zero(M * C), .dropout = dropout});
  // One product per element is exact in any order: what differs could only be the epilogue.
  k.MatMul({.M = M,
            .N = C,
            .K = 1,
            .a = a.Filled(M, 8),
            .lda = 1,
            .b = gamma,
            .ldb = C,
            .c = a.Zero(M * C),
            .ldc = C,
            .bias = beta,
            .epilogue = MatMulArgs::Epilogue::kActivation,
            .activated = a.Zero(M * C)});
  k.MatMul({.M = M,
            .N = C,
            .K = 1,
            .a = a.Filled(M, 9),
            .lda = 1,
            .b = gamma,
            .ldb = C,
            .c = a.Zero(M * C),
            .ldc = C,
            .bias = beta,
            .epilogue = MatMulArgs::Epilogue::kResidual,
            .residual = x,
            .dropout = dropout});

  auto* labels = reinterpret_cast<int32_t*>(a.Zero(M));
  for (int64_t i = 0; i < M; ++i) labels[i] = static_cast<int32_t>(i * 3);
  float *logits = a.Filled(M * V, 10), *max = a.Zero(M), *sum = a.Zero(M);
  k.SoftmaxChunk({.M = M,
                  .chunk = V,
                  .ld = V,
                  .logits = logits,
                  .labels = labels,
                  .row_max = max,
                  .row_sum = sum,
                  .target = a.Zero(M)});
  k.SoftmaxChunkBackward({.M = M,
                          .chunk = V,
                          .V = V,
                          .ld = V,
                          .logits = logits,
                          .labels = labels,
                          .row_max = max,
                          .row_sum = sum,
                          .scale = 0.01});
  k.Embedding({.B = 1,
               .T = M,
               .C = C,
               .V = 3 * M,
               .tokens = labels,
               .wte = a.Filled(3 * M * C, 11),
               .wpe = x,
               .y = a.Zero(M * C),
               .dropout = dropout});
  EXPECT_OK(device->stream(StreamId::kCompute).Synchronize());
  return a.All();
}

void UseTargets(int64_t targets) {
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(VectorWidthTest, BitsAreTheSameForEveryWidth) {
  const int64_t supported = hwy::SupportedTargets();
  if ((supported & HWY_AVX3) == 0 || (supported & HWY_AVX2) == 0) GTEST_SKIP() << "needs AVX-512 and AVX2";
  const std::vector<float> wide = RunKernels();
  UseTargets(HWY_AVX2);
  const std::vector<float> narrow = RunKernels();
  UseTargets(0);
  ASSERT_EQ(wide.size(), narrow.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(std::memcmp(&wide[i], &narrow[i], sizeof(float)), 0)
        << "float " << i << " of the arena: " << wide[i] << " and " << narrow[i];
  }
}

TEST(VectorWidthTest, AProcessorWithoutFusedMultiplyAddIsRefused) {
  UseTargets(HWY_SSE4);
  EXPECT_THAT(NewCpuDevice({.arena_bytes = 4096, .threads = 1}),
              StatusIs(absl::StatusCode::kFailedPrecondition, "fused multiply-add"));
  UseTargets(0);
}

}  // namespace
}  // namespace eps::worker
