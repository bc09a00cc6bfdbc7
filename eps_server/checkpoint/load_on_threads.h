#ifndef EPS_SERVER_CHECKPOINT_LOAD_ON_THREADS_H_
#define EPS_SERVER_CHECKPOINT_LOAD_ON_THREADS_H_

#include <cstddef>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace eps::server {

// Calls load(i, buffer) of each i below `count` once, in any order, on up to `threads` threads, the calling one among
// them: fewer where the system allows no more. `buffer` is the thread's own, of kChunkElems. The first error ends it, and
// is returned.
absl::Status LoadOnThreads(size_t count, int threads,
                           const std::function<absl::Status(size_t i, absl::Span<float> buffer)>& load);

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_LOAD_ON_THREADS_H_
