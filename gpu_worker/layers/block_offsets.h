#ifndef EPS_GPU_WORKER_LAYERS_BLOCK_OFFSETS_H_
#define EPS_GPU_WORKER_LAYERS_BLOCK_OFFSETS_H_

#include <cstdint>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/layers/linear.h"

namespace eps::worker {

// Which random numbers of a block are whose (MicroBatchKey); part of what makes a run's bits.
enum BlockDropoutUse : int {
  kAttentionDropoutUse = 0,
  kAttentionProjectionDropoutUse = 1,
  kMlpProjectionDropoutUse = 2,
  kInputDropoutUse = 3,
  // Of what enters adapters.
  kQkvAdaptersUse = 4,
  kAttentionOutAdaptersUse = 5,
  kUpAdaptersUse = 6,
  kDownAdaptersUse = 7,
};

// One product of each expert: those of the first, and how far each one's parameters lie from the one's before.
struct ExpertLinear {
  Linear first;
  int64_t stride = 0;
};

// Where a block's parameters lie (block.h has what they are for).
struct BlockOffsets {  // in elements of the layer's slot
  struct Norm {
    int64_t scale = 0, shift = -1;  // -1: an RMS norm
  };
  Norm attention_norm, mlp_norm;
  Linears qkv;  // queries and keys apart from values with a norm of heads
  int64_t query_norm = -1, key_norm = -1;
  Linears attention_out;  // one
  Linears up;             // gate first
  Linears down;           // one
  // With experts, in place of up and down.
  Linears router;                         // one
  std::vector<ExpertLinear> expert_up;    // gate first
  std::vector<ExpertLinear> expert_down;  // one

  std::vector<ExpertLinear> expert_products() const {
    std::vector<ExpertLinear> all = expert_up;
    all.insert(all.end(), expert_down.begin(), expert_down.end());
    return all;
  }
};
BlockOffsets BlockOffsetsOf(const ModelSpec& model, LayerId layer);

// Of all of the model's blocks.
LoraShape LoraShapeOf(const ModelSpec& model);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_LAYERS_BLOCK_OFFSETS_H_
