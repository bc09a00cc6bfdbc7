#ifndef EPS_SERVER_OPTIMIZER_UPDATE_MODES_H_
#define EPS_SERVER_OPTIMIZER_UPDATE_MODES_H_

#include <memory>

#include "eps_server/optimizer/held_gradients.h"
#include "eps_server/optimizer/update_engine.h"

namespace eps::server {

// The engine in each of its modes, of which UpdateEngine::Create chooses. What they share is update_engine_base.h.

// Eager, by chunks: one is updated in one pass as soon as its gradient is in. No clipping, or LAGGED. Rows of the token table that no
// token reads are updated before that (unread_rows.h).
std::unique_ptr<UpdateEngine> NewChunkUpdateEngine(UpdateEngine::Options options);

// Eager, by blobs: one is updated once all of its gradient is in, after a pass for norms. PER_BLOB, and LAMB.
// Its contributions are kept until then.
std::unique_ptr<UpdateEngine> NewBlobUpdateEngine(UpdateEngine::Options options);

// Deferred: blobs are updated once all of the step's gradient is in and has been summed into `held_gradients`. EXACT, FP16,
// also with LAMB.
std::unique_ptr<UpdateEngine> NewDeferredUpdateEngine(UpdateEngine::Options options, HeldGradients held_gradients);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_UPDATE_MODES_H_
