#ifndef EPS_GPU_WORKER_DEVICE_CUDA_HOST_PINS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_HOST_PINS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"

namespace eps::worker::cuda {

// The host memory that a device has pinned, page by page: each page once, in pieces, as one call for hundreds of GB
// fails and one for small pages takes minutes. A piece that is refused leaves the others as they are, and is tried once more
// when it is next asked for: where the host's memory grows as it is used, a shortage may be short.
//
// Threads: safe
class HostPins {
 public:
  static constexpr int64_t kPageBytes = 4096;
  static constexpr int64_t kPieceBytes = int64_t{256} << 20;  // the most of one call

  explicit HostPins(std::shared_ptr<GpuRuntime> runtime) : runtime_(std::move(runtime)) {}
  ~HostPins() { LetGo(); }
  HostPins(const HostPins&) = delete;
  HostPins& operator=(const HostPins&) = delete;

  // Pins the pages of `host` that were not seen before; a page keeps the access that it was first seen with. Returns
  // once those that another thread is pinning are settled too. kRead: pages that are pinned are mapped for reading alone
  // from then on; their pins outlast the permission that they needed.
  // Other threads enqueue no copies of `host`, or of what was pinned in one piece with it, meanwhile: they would not know
  // which of it is pinned.
  // Errors: the first of the runtime's; the other pieces are pinned all the same
  absl::Status Pin(absl::Span<const std::byte> host, HostAccess access) ABSL_LOCKS_EXCLUDED(mu_);
  // `host` in parts, in order, each of which one copy may take: it lies in one registration, or outside of all.
  std::vector<absl::Span<const std::byte>> Parts(absl::Span<const std::byte> host) const ABSL_LOCKS_EXCLUDED(mu_);
  // Lets go of memory whose pages were pinned together, and forgets it; of all. No copy of it is under way.
  void Unpin(absl::Span<const std::byte> host) ABSL_LOCKS_EXCLUDED(mu_);
  void LetGo() ABSL_LOCKS_EXCLUDED(mu_);

  int64_t pinned_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Of `host`, what is not pinned.
  int64_t loose_bytes(absl::Span<const std::byte> host) const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  enum class State { kAsked, kPinned, kRefused };
  struct Piece {
    uintptr_t end = 0;
    State state = State::kAsked;
    bool is_last_try = false;
  };
  using Pieces = std::map<uintptr_t, Piece>;  // by their first page; they do not overlap
  static uintptr_t FirstPage(absl::Span<const std::byte> host);
  static uintptr_t EndPage(absl::Span<const std::byte> host);

  // Enters the pages that were not seen, or refused once, as asked for; returns where each of their pieces begins and ends.
  std::vector<std::pair<uintptr_t, uintptr_t>> Claim(absl::Span<const std::byte> host) ABSL_LOCKS_EXCLUDED(mu_);
  bool IsSettled(absl::Span<const std::byte> host) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The first piece that ends behind `at`.
  Pieces::const_iterator FindFrom(uintptr_t at) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Pieces that begin in [begin, end).
  void Unpin(uintptr_t begin, uintptr_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<GpuRuntime> runtime_;
  mutable Mutex mu_;
  CondVar settled_;
  Pieces pieces_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_HOST_PINS_H_
