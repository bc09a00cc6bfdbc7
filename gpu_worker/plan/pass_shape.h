#ifndef EPS_GPU_WORKER_PLAN_PASS_SHAPE_H_
#define EPS_GPU_WORKER_PLAN_PASS_SHAPE_H_

#include <cstdint>
#include <iterator>
#include <vector>

#include "common/base/ids.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/plan/inner_places.h"

namespace eps::worker {

struct PassShape {
  std::vector<int> vnodes;  // of the run, rising; at most plan.max_pass_vnodes
  int num_vnodes = 1;       // of the run
  int micro_batches = 1;    // a vnode
  Dtype gradients = Dtype::kF32;
  bool expands = false;        // LayerShape::expands_blocks
  bool has_documents = false;  // blocks need to know where they begin and end
  bool forward_only = false;   // logits of one micro-batch: one vnode, micro_batches 1; or, if it evaluates,
  bool evaluates = false;      // each vnode's record; alone
  int group_rounds = 0;        // GroupParts::rounds; 0: this worker goes alone
  // Blocks that the pass leaves out, rising (LayerDrop): it is the pass of a model without them, in the plan of all
  // layers.
  std::vector<LayerId> dropped = {};
  // By block that has a backward some time after its forward, the lowest first, and micro-batch of the pass. Empty:
  // RelayPlan::PlacesOf.
  std::vector<InnerPlace> inner = {};

  int64_t items() const { return std::ssize(vnodes) * micro_batches; }
  bool in_group() const { return group_rounds > 0; }
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PASS_SHAPE_H_
