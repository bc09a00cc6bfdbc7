#include "gpu_worker/group/shared_ring.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace eps::worker {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));
static_assert(std::atomic<uint64_t>::is_always_lock_free);

void SharedBell::Ring() {
  word_.fetch_add(1, std::memory_order_acq_rel);
  // Not FUTEX_PRIVATE, which is all that std::atomic::notify knows: the waiter is in another process.
  syscall(SYS_futex, &word_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void SharedBell::Wait(uint32_t seen, absl::Duration timeout) {
  const timespec time = absl::ToTimespec(timeout);
  syscall(SYS_futex, &word_, FUTEX_WAIT, seen, &time, nullptr, 0);  // whatever it returns: the caller looks again
}

size_t SharedRing::Write(absl::Span<const std::byte> bytes) {
  const uint64_t written = written_.load(std::memory_order_relaxed);
  const uint64_t held = written - read_.load(std::memory_order_acquire);
  if (held >= kDataBytes) return 0;
  const size_t count = std::min(bytes.size(), kDataBytes - static_cast<size_t>(held));
  if (count == 0) return 0;
  const size_t at = written % kDataBytes;
  const size_t first = std::min(count, kDataBytes - at);
  std::memcpy(data_ + at, bytes.data(), first);
  std::memcpy(data_, bytes.data() + first, count - first);
  written_.store(written + count, std::memory_order_release);
  return count;
}

size_t SharedRing::Read(absl::Span<std::byte> bytes) {
  const uint64_t read = read_.load(std::memory_order_relaxed);
  const uint64_t held = written_.load(std::memory_order_acquire) - read;
  const size_t count = std::min(bytes.size(), static_cast<size_t>(std::min<uint64_t>(held, kDataBytes)));
  if (count == 0) return 0;
  const size_t at = read % kDataBytes;
  const size_t first = std::min(count, kDataBytes - at);
  std::memcpy(bytes.data(), data_ + at, first);
  std::memcpy(bytes.data() + first, data_, count - first);
  read_.store(read + count, std::memory_order_release);
  return count;
}

}  // namespace eps::worker
