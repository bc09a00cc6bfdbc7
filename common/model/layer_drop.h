#ifndef EPS_COMMON_MODEL_LAYER_DROP_H_
#define EPS_COMMON_MODEL_LAYER_DROP_H_

#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"

namespace eps {

enum class DropRule {
  kUniform,  // every block alike: LayerDrop (Fan, Grave, Joulin, arXiv:1909.11556, section 3.1)
  // Block i of L, from 1, with i / L of the share: stochastic depth (Huang et al., arXiv:1603.09382, equation 4), and
  // progressive layer dropping (Zhang, He, arXiv:2010.13369, section 4) at the end of its schedule.
  kLinear,
};

// Which blocks a step leaves out: RunSpec's depth.drop.
struct LayerDropConfig {
  double share = 0;  // [0, 1): how likely a block, with kLinear the last one, is dropped in a step; 0: nothing ever is
  DropRule rule = DropRule::kUniform;

  bool is_on() const { return share > 0; }
  friend bool operator==(const LayerDropConfig&, const LayerDropConfig&) = default;
};

// Decides it, in the daemon and in every worker: a pure function of (seed, step, layer), the seed being the model's
// init_seed, as dropout's is. A dropped block is not there in its step: what enters it enters the next one, and it is not
// pulled, computed, pushed or updated. All vnodes of a step drop the same blocks. Evaluation and serving drop none, and
// nothing is rescaled for it (arXiv:1909.11556, section 3.2).
//
// At least one block always runs, and one that trains if any block does, so that no step is without a gradient: where all
// of them would be dropped, the one whose number came nearest to staying stays.
class LayerDrop {
 public:
  LayerDrop(const ModelSpec& model, LayerDropConfig config);

  bool is_on() const { return config_.is_on(); }
  // Rising; blocks alone.
  std::vector<LayerId> DroppedIn(StepId step) const;
  // As many as a step drops on average, spread over the blocks as their shares are: for planning.
  std::vector<LayerId> Average() const;
  // How likely a block is dropped; of LayerId 0, the embedding, and of the head 0.
  double ShareOf(LayerId layer) const;

 private:
  // None of kept_one_of_ would be left. Of rising layers.
  bool DropsAll(const std::vector<LayerId>& dropped) const;

  const LayerDropConfig config_;
  const uint64_t seed_;
  const int num_blocks_;
  std::vector<LayerId> kept_one_of_;  // of which at least one runs
};

// By blob: whether all of its uses are of `dropped` layers (rising), so that the step pulls it nowhere.
std::vector<bool> DroppedBlobs(const ModelSpec& model, absl::Span<const LayerId> dropped);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_LAYER_DROP_H_
