#ifndef EPS_GPU_WORKER_RELAY_LAYER_RUNNER_H_
#define EPS_GPU_WORKER_RELAY_LAYER_RUNNER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/layers/block.h"
#include "gpu_worker/layers/embedding.h"
#include "gpu_worker/layers/head.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/pass_memory.h"
#include "gpu_worker/relay/pass_weights.h"

namespace eps::worker {

// What the compute steps of one pass depend on beside the plan.
struct PassContext {
  LayerShape shape;
  uint64_t seed = 0;
  StepId step;
  absl::Span<const int> vnodes;  // of the pass
  double token_scale = 1;        // of a counted token's loss: the loss scale / counted_tokens of the step
  // Of a micro-batch in each block: ExpertsConfig's balance * the loss scale / micro-batches of the step.
  double expert_balance = 0;
  Dtype gradients = Dtype::kF32;
  bool training = true;               // false: no dropout
  bool has_adapters = true;           // false: kLoss makes the reference of preferences, by the model without them
  const GroupParts* group = nullptr;  // null: this worker goes alone
  PassWeights weights = {};
  absl::Span<std::byte> logits;  // kLogits only: (vocab) in the compute dtype, on the host, ...
  int64_t logits_row = 0;        // ... of this row of the micro-batch, or of a classifier's first sample
};

// Whether the layer's weights are read in place. A block's kernels take one address for all its parameters, so one of
// several blobs is copied to its slot, or expanded, first.
bool ReadsInPlace(const LayerSpec& layer, const PassContext& pass);

// Runs the steps of the compute stream: the arena's slots, the layers, the kernel table.
//
// Threads: none of its own; one caller
class LayerRunner {
 public:
  // All outlive the runner. `kernels` run on `compute`.
  LayerRunner(const ModelSpec& model, const RelayPlan& plan, const ArenaMap& arena, const StartValues& start_values,
              Kernels& kernels, Stream& compute);

  void Run(const RelayStep& step, const PassContext& pass);
  // The forward of every layer and, but for a pass without adapters, the backward, over one micro-batch of one vnode and
  // in any of its places: what is called is what a pass calls, what comes out means nothing. starts_gradient: the vnode's
  // first micro-batch.
  void RunEach(const PassContext& pass, bool starts_gradient);

 private:
  MicroBatchKey Key(const RelayStep& step, const PassContext& pass) const;
  BlockArgs BlockOf(const RelayStep& step, const PassContext& pass) const;
  HeadArgs HeadOf(const RelayStep& step, const PassContext& pass) const;
  int32_t* Flag(const RelayStep& step, int vnode, const PassContext& pass) const;
  LossRecord* Record(const RelayStep& step) const;
  // Of the step's micro-batch, in its tokens' slot; null without one.
  SequenceScore* Reference(const RelayStep& step, const PassContext& pass) const;
  // Where the layer's weights begin: its first blob in place, or its slot.
  const std::byte* Weights(const RelayStep& step, const PassContext& pass) const;
  // An offset in the layer's slot, as one from Weights: blobs in place lie as the daemon has them.
  int64_t WeightOffset(LayerId layer, int64_t slot_offset_elems, const PassContext& pass) const;
  float* Gradient(int slot) const { return reinterpret_cast<float*>(Slot(arena_.gradients, slot)); }
  TokenArrays Tokens(const RelayStep& step, const PassContext& pass) const;

  void ZeroGradient(const RelayStep& step);
  void Expand(const RelayStep& step, const PassContext& pass);
  void Forward(const RelayStep& step, const PassContext& pass);
  void Head(const RelayStep& step, const PassContext& pass);
  void Logits(const RelayStep& step, const PassContext& pass);
  void Loss(const RelayStep& step, const PassContext& pass);
  void Backward(const RelayStep& step, const PassContext& pass);
  // `dst`: FinishLeafArgs::dst.
  void FinishLeaf(const RelayStep& step, const PassContext& pass, void* dst);
  void Emit(const RelayStep& step, const PassContext& pass);
  void SumGroup(const RelayStep& step, const GroupParts& group);
  float* GroupPlace(LayerId layer, GroupParts::Place place, const GroupParts& group) const;

  const ModelSpec& model_;
  const RelayPlan& plan_;
  const ArenaMap& arena_;
  const StartValues& start_values_;
  Kernels& kernels_;
  Stream& compute_;
  EmbeddingOffsets embedding_;
  HeadOffsets head_;
  std::vector<BlockOffsets> blocks_;            // by layer; empty ones for embedding and head
  std::vector<std::vector<ElemRange>> zeroed_;  // by layer: ZeroedGradientRanges
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_LAYER_RUNNER_H_
