#ifndef EPS_GPU_WORKER_LAYERS_EXPERTS_H_
#define EPS_GPU_WORKER_LAYERS_EXPERTS_H_

#include <cstddef>
#include <cstdint>

#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/block_offsets.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/layers/linear.h"

namespace eps::worker {

// The feed-forward part of a block with experts (ExpertsConfig), of R = M * per_token routed rows:
//   y = residual + the sum over a token's experts e of (w_e SwiGLU(x W_gate,e, x W_up,e)) W_down,e
// with w by the logits x W_router. The weight stands in front of the last product, so that its gradient is made with that
// of SwiGLU, and nothing of what the experts give is kept.

// Arrays of a Routing, in bytes of the block's scratch.
struct RoutingPlaces {
  RoutingPlaces() = default;
  RoutingPlaces(const LayerShape& shape, Layout& layout);
  Routing At(void* scratch) const;

  int64_t first_row = 0, token = 0, expert = 0, row = 0, weight = 0;
};

// One micro-batch's pass through them; all of it is the caller's.
struct ExpertsContext {
  Kernels& kernels;
  const LayerShape& shape;
  const BlockOffsets& offsets;
  const LinearContext& linear;
  void* logits = nullptr;  // act (M, num); of the inner slot, as is
  void* up = nullptr;      // act (R, up_width): before SwiGLU
  double balance = 0;      // of RouteBackwardArgs
  Routing routing;         // scratch
  void* rows = nullptr;    // act (R, C): scratch
  void* hidden = nullptr;  // act (R, F): scratch
  void* kernel = nullptr;  // KernelSizes::route: scratch

  // x, residual, y: act (M, C). y == null: only what the inner slot has.
  void Forward(const void* x, const void* residual, void* y) const;

  struct BackwardArrays {       // scratch
    void* d_up = nullptr;       // act (R, up_width)
    void* d_hidden = nullptr;   // act (R, F)
    float* d_weight = nullptr;  // (R)
    void* d_logits = nullptr;   // act (M, num)
  };
  // In two parts, between which `hidden` and `d_hidden` become free. dy: act (M, C), of y. gradient: the layer's slot.
  void BackwardDown(const BackwardArrays& arrays, const void* dy, float* gradient) const;
  // dx: act (M, C), of x, of the experts and their router alone.
  void BackwardUp(const BackwardArrays& arrays, const void* x, void* dx, float* gradient) const;

 private:
  int64_t num_rows() const { return shape.mlp_rows(); }
  void Route() const;
  void Gather(const void* x) const;
  // c = a op(W_e), of each routed row: forward, or the gradient of what came in.
  void Multiply(const ExpertLinear& linear, const void* a, void* c, int64_t ldc) const;
  void MultiplyBack(const ExpertLinear& linear, const void* dc, int64_t lddc, void* da, bool accumulate) const;
  void BackwardWeights(const ExpertLinear& linear, const void* a, const void* dc, int64_t lddc, float* gradient) const;
  const void* Weight(const ExpertLinear& l) const { return At(linear.weights, l.first.weight * linear.act_bytes); }
  // Columns of an array of activations, from the linear's first on.
  std::byte* Columns(void* array, const ExpertLinear& l) const {
    return At(array, l.first.first_column * linear.act_bytes);
  }
  const std::byte* Columns(const void* array, const ExpertLinear& l) const {
    return At(array, l.first.first_column * linear.act_bytes);
  }
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_EXPERTS_H_
