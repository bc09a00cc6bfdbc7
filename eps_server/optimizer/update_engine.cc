#include "eps_server/optimizer/update_engine.h"

#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/spec/run_config.h"
#include "eps_server/optimizer/chunk_kernels.h"
#include "eps_server/optimizer/held_gradients.h"
#include "eps_server/optimizer/update_modes.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<UpdateEngine>> UpdateEngine::Create(Options options) {
  EPS_CHECK(options.model != nullptr && options.run != nullptr && options.store != nullptr);
  EPS_CHECK(options.threads >= 1 && options.on_blob_made && options.on_step_made && options.on_failure);
  EPS_CHECK(options.on_step_decided || !options.run->defers_updates());
  EPS_RETURN_IF_ERROR(CheckVectorUnit());
  const OptimizerConfig& optimizer = options.run->optimizer;
  if (options.run->defers_updates()) {
    EPS_ASSIGN_OR_RETURN(HeldGradients held_gradients, HeldGradients::Map(*options.model, *options.run));
    return NewDeferredUpdateEngine(std::move(options), std::move(held_gradients));
  }
  if (optimizer.clip == ClipMode::kPerBlob || optimizer.rule == OptimizerRule::kLamb) {
    return NewBlobUpdateEngine(std::move(options));
  }
  return NewChunkUpdateEngine(std::move(options));
}

}  // namespace eps::server
