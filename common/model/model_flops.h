#ifndef EPS_COMMON_MODEL_MODEL_FLOPS_H_
#define EPS_COMMON_MODEL_MODEL_FLOPS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"

namespace eps {

// Floating-point operations that training a model asks for by its mathematics, whatever is recomputed on the way: those of
// the products alone, a multiply-add as two. Of a weight that multiplies each token: 2 forward, 2 for the gradient of what
// came in, 2 for its own. Attention: every token with the whole context (or window), causal or not, packed or not, as the
// field counts it. So a GPT-2 (d_ff = 4 d) of which all is trained has 6 * (12 L d^2 + V d) + 12 L T d a token.
//
// Of experts those count that a token goes through.
//
// What is frozen has no gradient of its own, and below the lowest layer that trains there is only the forward; of that layer
// the gradient of what comes in is counted, too.
// Source: Chowdhery et al., arXiv:2204.02311, appendix B.
class ModelFlops {
 public:
  // has_reference: each token goes forward once more, without adapters (PreferenceConfig).
  explicit ModelFlops(const ModelSpec& model, bool has_reference = false);

  struct Step {
    int64_t tokens = 0;  // padding not among them
    int64_t samples = 0;
    absl::Span<const LayerId> dropped = {};
  };
  double Of(const Step& step) const;

 private:
  struct LayerFlops {
    double per_token = 0;
    double per_sample = 0;  // a classifier's head sees one row of each
  };
  std::vector<LayerFlops> layers_;
  double reference_per_token_ = 0;  // of all layers
};

}  // namespace eps

#endif  // EPS_COMMON_MODEL_MODEL_FLOPS_H_
