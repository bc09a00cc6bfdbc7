#ifndef EPS_GPU_WORKER_TRANSPORT_INBOX_MEMORY_H_
#define EPS_GPU_WORKER_TRANSPORT_INBOX_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/ipc/shared_segment.h"
#include "gpu_worker/transport/free_places.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// The inbox that the daemon reads this worker's gradients from: slots for staging at its beginning, and behind them
// memory that is handed out.
//
// Threads: safe
class InboxMemory : public std::enable_shared_from_this<InboxMemory> {
 public:
  // `segment` is longer than staging_bytes, or as long: then nothing can be handed out.
  InboxMemory(SharedSegment segment, int64_t staging_bytes);

  // Empty when there is no place for it. It comes back when its owner is let go, and keeps the inbox alive until then.
  std::optional<PushMemory> Take(int64_t num_bytes) ABSL_LOCKS_EXCLUDED(mu_);

  // Where `bytes` begin, from the beginning of the inbox; -1: they do not lie in what is handed out.
  int64_t OffsetOf(absl::Span<const std::byte> bytes) const;
  absl::Span<std::byte> Staging(int64_t offset_bytes, int64_t num_bytes) const {
    return segment_.bytes().subspan(static_cast<size_t>(offset_bytes), static_cast<size_t>(num_bytes));
  }

 private:
  // Fixed after construction.
  const SharedSegment segment_;
  const int64_t staging_bytes_;

  Mutex mu_;
  FreePlaces free_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_INBOX_MEMORY_H_
