#include "gpu_worker/transport/inbox_memory.h"

#include <functional>
#include <utility>

#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/formats/shared_message.h"

namespace eps::worker {

InboxMemory::InboxMemory(SharedSegment segment, int64_t staging_bytes)
    : segment_(std::move(segment)),
      staging_bytes_(staging_bytes),
      free_(staging_bytes, static_cast<int64_t>(segment_.bytes().size())) {
  EPS_CHECK(static_cast<int64_t>(segment_.bytes().size()) >= staging_bytes);
}

std::optional<PushMemory> InboxMemory::Take(int64_t num_bytes) {
  const int64_t taken_bytes = RoundUp(num_bytes, kInboxAlignBytes);
  std::optional<int64_t> offset_bytes;
  {
    MutexLock lock(mu_);
    offset_bytes = free_.Take(taken_bytes);
  }
  if (!offset_bytes.has_value()) return std::nullopt;
  std::byte* bytes = segment_.bytes().data() + *offset_bytes;
  return PushMemory{.bytes = absl::MakeSpan(bytes, static_cast<size_t>(num_bytes)),
                    .owner = std::shared_ptr<void>(
                        bytes, [inbox = shared_from_this(), offset_bytes = *offset_bytes, taken_bytes](void*) {
                          MutexLock lock(inbox->mu_);
                          inbox->free_.Return(offset_bytes, taken_bytes);
                        })};
}

int64_t InboxMemory::OffsetOf(absl::Span<const std::byte> bytes) const {
  const absl::Span<const std::byte> ours = segment_.bytes().subspan(static_cast<size_t>(staging_bytes_));
  // Pointers into different objects compare so, and only so.
  const std::less_equal<const std::byte*> not_after;
  if (!not_after(ours.data(), bytes.data()) || !not_after(bytes.data() + bytes.size(), ours.data() + ours.size())) {
    return -1;
  }
  return staging_bytes_ + (bytes.data() - ours.data());
}

}  // namespace eps::worker
