#ifndef EPS_GPU_WORKER_PLAN_LAYER_OPERATIONS_H_
#define EPS_GPU_WORKER_PLAN_LAYER_OPERATIONS_H_

#include "common/model/model_spec.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// What a layer does with one micro-batch: floating-point operations of its products (a multiply-add is two), and the
// bytes that everything else reads and writes, which is small beside them from some width on.
struct LayerOperations {
  double forward = 0;
  // All but the product behind the activation, whose output nobody needs; the head's: logits that are there a second
  // time, unless it keeps them.
  double recompute = 0;
  double backward = 0;  // without recomputing; the head's: its whole visit, keeping nothing
  double bytes = 0;     // of a forward; a backward's are of the same order
};
LayerOperations OperationsOf(LayerKind kind, const LayerShape& shape);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_LAYER_OPERATIONS_H_
