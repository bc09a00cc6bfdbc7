#ifndef EPS_GPU_WORKER_LAYERS_REFERENCE_GPT2_H_
#define EPS_GPU_WORKER_LAYERS_REFERENCE_GPT2_H_

#include <cstdint>
#include <vector>

#include "common/model/model_spec.h"
#include "common/schedule/vnode_batch.h"

namespace eps::worker {

// GPT-2 by plain fp64 loops, sample by sample: what the layers are tested against. Nothing is shared with them but the
// definition of the random numbers (kernels.h) and ModelSpec's names.
class ReferenceGpt2 {
 public:
  // masters: by blob, num_elems values each. `model` outlives the reference.
  ReferenceGpt2(const ModelSpec* model, std::vector<std::vector<double>> masters);

  struct StepResult {
    std::vector<double> loss_sum;  // by vnode of the assignment
    std::vector<int64_t> counted;
    std::vector<std::vector<double>> gradients;  // by layer, laid out as its slot: one use of each blob
    double mean_loss = 0;                        // over assignment.counted_tokens
  };
  // The gradient of the mean loss over assignment.counted_tokens, from the assignment's vnodes.
  StepResult Step(const Assignment& assignment, int64_t micro_batch, uint64_t seed) const;

  // The logits (vocab) after the last token; no dropout.
  std::vector<double> NextTokenLogits(const std::vector<int32_t>& tokens) const;

  std::vector<std::vector<double>>& masters() { return masters_; }

 private:
  const ModelSpec& model_;
  std::vector<std::vector<double>> masters_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_REFERENCE_GPT2_H_
