// Work that comes again, which a device may enqueue in another way than the first time.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "gpu_worker/device/conformance_memory.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/device_conformance.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device/reference_kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using reference::Array;

constexpr int64_t kB = 2, kT = 64, kHeads = 2, kD = 64;
constexpr int64_t kRows = kB * kT, kC = kHeads * kD, kQkv = 3 * kC;

// Of a block, there and back: a projection, attention, an activation, and gradients, of which one is summed over many rows.
// Always at the same addresses.
class Block {
 public:
  Block(Device& device, const KernelSizes& sizes) : memory_(device) {
    std::mt19937 random(3);
    w_ = memory_.PutAct(RandomArray(random, kC * kQkv, 0.1));
    bias_ = memory_.PutAct(RandomArray(random, kQkv));
    scratch_ = memory_.Alloc(sizes.attention(kB, kT, kHeads, kD));
    scratch_backward_ = memory_.Alloc(sizes.attention_backward(kB, kT, kHeads, kD));
    lse_ = static_cast<float*>(memory_.Alloc(kB * kHeads * kT * int64_t{sizeof(float)}));
    dw_ = static_cast<float*>(memory_.Alloc(kC * kQkv * int64_t{sizeof(float)}));
    for (void** array : {&x_, &o_, &d_o_, &y_, &activated_, &dx_}) *array = memory_.AllocAct(kRows * kC);
    for (void** array : {&qkv_, &dqkv_}) *array = memory_.AllocAct(kRows * kQkv);
  }

  // With other inputs for another seed, where those of the last time were.
  void Call(unsigned seed) {
    std::mt19937 random(seed);
    memory_.SetAct(x_, RandomArray(random, kRows * kC));
    memory_.SetAct(d_o_, RandomArray(random, kRows * kC));
    Kernels& kernels = memory_.device().kernels();
    const double scale = 1 / std::sqrt(static_cast<double>(kD));
    // More than is needed: a device may treat few calls in another way than many.
    for (void* array : {dx_, y_}) {
      kernels.FillZero({.num_bytes = kRows * kC * int64_t{sizeof(uint16_t)}, .dst = array});
    }
    kernels.FillZero({.num_bytes = kC * kQkv * int64_t{sizeof(float)}, .dst = dw_});
    kernels.MatMul({.M = kRows,
                    .N = kQkv,
                    .K = kC,
                    .a = x_,
                    .lda = kC,
                    .b = w_,
                    .ldb = kQkv,
                    .c = qkv_,
                    .ldc = kQkv,
                    .bias = bias_});
    kernels.Attention({.B = kB,
                       .T = kT,
                       .H = kHeads,
                       .kv_heads = kHeads,
                       .D = kD,
                       .qkv = qkv_,
                       .o = o_,
                       .lse = lse_,
                       .scale = scale,
                       .scratch = scratch_});
    kernels.MatMul({.M = kRows,
                    .N = kC,
                    .K = kC,
                    .a = o_,
                    .lda = kC,
                    .b = w_,
                    .ldb = kQkv,
                    .c = y_,
                    .ldc = kC,
                    .epilogue = MatMulArgs::Epilogue::kActivation,
                    .activated = activated_});
    kernels.AttentionBackward({.B = kB,
                               .T = kT,
                               .H = kHeads,
                               .kv_heads = kHeads,
                               .D = kD,
                               .qkv = qkv_,
                               .o = o_,
                               .lse = lse_,
                               .d_o = d_o_,
                               .dqkv = dqkv_,
                               .scale = scale,
                               .scratch = scratch_backward_});
    kernels.MatMul({.M = kC,
                    .N = kQkv,
                    .K = kRows,
                    .a = x_,
                    .lda = kC,
                    .trans_a = true,
                    .b = dqkv_,
                    .ldb = kQkv,
                    .c = dw_,
                    .ldc = kQkv,
                    .c_is_gradient = true,
                    .accumulate = true});
    kernels.MatMul({.M = kRows,
                    .N = kC,
                    .K = kQkv,
                    .a = dqkv_,
                    .lda = kQkv,
                    .b = w_,
                    .ldb = kQkv,
                    .trans_b = true,
                    .c = dx_,
                    .ldc = kC});
  }
  std::vector<Array> Results() {
    return {memory_.GetAct(o_, kRows * kC), memory_.GetAct(activated_, kRows * kC), memory_.GetAct(dx_, kRows * kC),
            memory_.GetF32(dw_, kC * kQkv)};
  }

 private:
  ConformanceMemory memory_;
  void *w_, *bias_, *scratch_, *scratch_backward_, *x_, *qkv_, *o_, *d_o_, *dqkv_, *y_, *activated_, *dx_;
  float *lse_, *dw_;
};

TEST_P(DeviceConformanceTest, WorkThatComesAgainComputesFromWhatLiesThereNow) {
  constexpr unsigned kSeeds = 2;
  Block block(device(), GetParam().sizes);
  std::vector<std::vector<Array>> want;
  for (unsigned time = 0; time < 3 * kSeeds; ++time) {
    block.Call(time % kSeeds);
    const std::vector<Array> got = block.Results();
    if (time < kSeeds) {
      want.push_back(got);
      continue;
    }
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(got[i] == want[time % kSeeds][i]) << "time " << time << ", output " << i;
    }
  }
  EXPECT_FALSE(want[0] == want[1]);
}

}  // namespace
}  // namespace eps::worker
