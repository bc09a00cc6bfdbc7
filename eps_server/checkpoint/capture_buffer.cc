#include "eps_server/checkpoint/capture_buffer.h"

#include <cstring>
#include <utility>

#include "common/base/status_macros.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<CaptureBuffer>> CaptureBuffer::Create(int64_t num_bytes) {
  EPS_CHECK(num_bytes > 0);
  EPS_ASSIGN_OR_RETURN(AnonymousMemory memory, AnonymousMemory::Map(num_bytes, "checkpoint.buffer_bytes"));
  std::memset(memory.base(), 0, static_cast<size_t>(num_bytes));
  return std::unique_ptr<CaptureBuffer>(new CaptureBuffer(std::move(memory)));
}

std::byte* CaptureBuffer::Push(size_t num_bytes) {
  const auto all_bytes = static_cast<size_t>(memory_.num_bytes());
  size_t begin = 0, room_end = all_bytes;
  if (!arrays_.empty()) {
    const Array &oldest = arrays_.front(), &newest = arrays_.back();
    const bool wrapped = newest.begin < oldest.begin;
    if (wrapped || all_bytes - newest.end < num_bytes) {
      // Behind the newest and before the oldest, or from the start again if nothing is there yet.
      begin = wrapped ? newest.end : 0;
      room_end = oldest.begin;
    } else {
      begin = newest.end;
    }
  }
  if (room_end - begin < num_bytes) return nullptr;
  arrays_.push_back({begin, begin + num_bytes});
  return memory_.base() + begin;
}

void CaptureBuffer::Pop() {
  EPS_CHECK(!arrays_.empty());
  arrays_.pop_front();
}

}  // namespace eps::server
