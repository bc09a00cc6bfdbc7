#include "gpu_worker/transport/inbox_memory.h"

#include <functional>
#include <iterator>

#include "common/base/byte_size.h"
#include "common/base/status_macros.h"
#include "common/formats/shared_message.h"

namespace eps::worker {

InboxMemory::InboxMemory(SharedSegment segment, int64_t staging_bytes)
    : segment_(std::move(segment)), staging_bytes_(staging_bytes) {
  const auto all = static_cast<int64_t>(segment_.bytes().size());
  EPS_CHECK(all >= staging_bytes);
  if (all > staging_bytes) free_.emplace(staging_bytes, all - staging_bytes);
}

std::optional<PushMemory> InboxMemory::Take(int64_t num_bytes) {
  const int64_t taken_bytes = RoundUp(num_bytes, kInboxAlignBytes);
  int64_t offset_bytes = -1;
  {
    MutexLock lock(mu_);
    for (auto place = free_.begin(); place != free_.end(); ++place) {
      if (place->second < taken_bytes) continue;
      offset_bytes = place->first;
      const int64_t left_bytes = place->second - taken_bytes;
      free_.erase(place);
      if (left_bytes > 0) free_.emplace(offset_bytes + taken_bytes, left_bytes);
      break;
    }
  }
  if (offset_bytes < 0) return std::nullopt;
  std::byte* bytes = segment_.bytes().data() + offset_bytes;
  return PushMemory{.bytes = absl::MakeSpan(bytes, static_cast<size_t>(num_bytes)),
                    .owner = std::shared_ptr<void>(bytes, [inbox = shared_from_this(), offset_bytes, taken_bytes](
                                                              void*) { inbox->Return(offset_bytes, taken_bytes); })};
}

void InboxMemory::Return(int64_t offset_bytes, int64_t num_bytes) {
  MutexLock lock(mu_);
  auto place = free_.emplace(offset_bytes, num_bytes).first;
  if (const auto next = std::next(place); next != free_.end() && offset_bytes + num_bytes == next->first) {
    place->second += next->second;
    free_.erase(next);
  }
  if (place == free_.begin()) return;
  const auto before = std::prev(place);
  if (before->first + before->second != offset_bytes) return;
  before->second += place->second;
  free_.erase(place);
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
