#ifndef EPS_GPU_WORKER_GROUP_SHARED_RING_H_
#define EPS_GPU_WORKER_GROUP_SHARED_RING_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace eps::worker {

// A word in shared memory that wakes who waits for it to change, in any process.
//
// Threads: safe. A wait that begins after Ring, with the value read before it, does not block.
class SharedBell {
 public:
  uint32_t Read() const { return word_.load(std::memory_order_acquire); }
  void Ring();
  // Returns when the value is not `seen` any more, or after `timeout`, or for no reason.
  void Wait(uint32_t seen, absl::Duration timeout);

 private:
  std::atomic<uint32_t> word_;
};

// Bytes on their way from one process to another, in shared memory that began as zeros.
//
// Threads: one writer, one reader
class SharedRing {
 public:
  static constexpr size_t kDataBytes = size_t{128} << 10;

  // Copies as much as there is room for, and returns how much that was.
  size_t Write(absl::Span<const std::byte> bytes);
  // Copies what is there, up to bytes.size(), and returns how much that was. A peer that wrote nonsense into the ring can
  // make wrong bytes come, and nothing worse.
  size_t Read(absl::Span<std::byte> bytes);

 private:
  // Each side's counter in a cache line of its own: bytes so far, never falling.
  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> read_;
  alignas(64) std::byte data_[kDataBytes];
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_SHARED_RING_H_
