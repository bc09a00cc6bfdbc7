#include "gpu_worker/layers/linear.h"

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "common/base/byte_size.h"
#include "common/numeric/bf16.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/arena_span.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {
namespace {

constexpr int64_t kRows = 512, kIn = 32, kOut = 32, kRank = 8;

// In the arena of an emulated GPU that computes in bf16, which is the host's memory.
class Bf16Linear : public ::testing::Test {
 protected:
  using Values = std::vector<float>;

  Bf16Linear()
      : device_(cuda::NewCudaDevice({.arena_bytes = kBytes, .act = Dtype::kBf16},
                                    cuda::NewEmulatedRuntime(cuda::GridOrder::kForward, {}))
                    .value()) {}

  Bf16* Put(const Values& values) {
    auto* to = static_cast<Bf16*>(device_->Address({next_, static_cast<int64_t>(values.size()) * 2}).value());
    next_ += RoundUp(static_cast<int64_t>(values.size()) * 2, kArenaAlignBytes);
    for (size_t i = 0; i < values.size(); ++i) to[i] = ToBf16(values[i]);
    return to;
  }
  Values Random(int64_t n, float size) {
    std::normal_distribution<float> normal(0, size);
    Values values(static_cast<size_t>(n));
    for (float& v : values) v = normal(random_);
    return values;
  }
  double Mean(const Bf16* values, int64_t n) {
    EXPECT_OK(device_->stream(StreamId::kCompute).Synchronize());
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += ToFloat(values[i]);
    return sum / static_cast<double>(n);
  }

  static constexpr int64_t kBytes = int64_t{1} << 20;
  const std::unique_ptr<Device> device_;
  std::mt19937 random_{7};
  int64_t next_ = 0;
};

// What an adapter adds is below half a last bit of the residual, and even so all of it is there on average: forward, on top of
// a residual, and back, where a gradient goes on beside the one that comes through.
TEST_F(Bf16Linear, WhatAdaptersAddIsNotRoundedAway) {
  constexpr float kShift = 1.0f / 2048;
  // Every row and column gets the shift: x and dy begin with 1, which A's and B's first row and column pick.
  Values weights = Random(kOut * kIn, 0.05f), a(kRank * kIn, 0.0f), b(kOut * kRank, 0.0f);
  Values x = Random(kRows * kIn, 1), dy = Random(kRows * kOut, 1);
  for (int64_t row = 0; row < kRows; ++row) x[row * kIn] = dy[row * kOut] = 1;
  a[0] = 1;
  for (int64_t out = 0; out < kOut; ++out) b[out * kRank] = kShift;
  Values back_a(kRank * kIn, 0.0f), back_b(kOut * kRank, 0.0f);
  back_b[0] = 1;
  for (int64_t in = 0; in < kIn; ++in) back_a[in] = kShift;

  const auto mean = [&](bool has_adapter, bool is_backward) {
    Values slot = weights;
    slot.insert(slot.end(), is_backward ? back_a.begin() : a.begin(), is_backward ? back_a.end() : a.end());
    slot.insert(slot.end(), is_backward ? back_b.begin() : b.begin(), is_backward ? back_b.end() : b.end());
    Linears linears{.products = {{.in = kIn, .out = kOut, .is_out_in = true, .has_adapter = has_adapter}},
                    .dropout_use = 0};
    if (has_adapter) {
      linears.as = {{.in = kIn, .out = kRank, .weight = kOut * kIn, .is_out_in = true}};
      linears.adapters = {{.b = {.in = kRank, .out = kOut, .weight = (kOut + kRank) * kIn, .is_out_in = true}}};
    }
    next_ = 0;
    random_.seed(11);
    const LinearContext context{
        .kernels = device_->kernels(),
        .micro_batch_rows = kRows,
        .rows = {0, kRows},
        .act_bytes = 2,
        .weights = Put(slot),
        .scratch = {.t = Put(Values(kRows * kRank)), .dt = Put(Values(kRows * kRank)), .t_width = kRank}};
    const Bf16* residual = Put(Random(kRows * kOut, 1));
    Bf16* result = Put(Values(kRows * kOut));
    if (is_backward) {
      const LinearGradient gradient = context.GradientOf(linears, Put(dy), kOut);
      context.BackwardInput(linears, gradient, result, residual);
    } else {
      context.Forward(linears, Put(x), {.y = result, .ld = kOut},
                      {.epilogue = MatMulArgs::Epilogue::kResidual, .residual = residual});
    }
    return Mean(result, kRows * kOut);
  };
  for (const bool is_backward : {false, true}) {
    EXPECT_NEAR(mean(true, is_backward) - mean(false, is_backward), kShift, 0.2 * kShift)
        << (is_backward ? "back" : "forward");
  }
}

}  // namespace
}  // namespace eps::worker
