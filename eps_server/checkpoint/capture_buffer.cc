#include "eps_server/checkpoint/capture_buffer.h"

#include <cstring>
#include <utility>

#include "common/base/status_macros.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<CaptureBuffer>> CaptureBuffer::Create(int64_t num_bytes) {
  EPS_CHECK(num_bytes >= static_cast<int64_t>(sizeof(float)));
  EPS_ASSIGN_OR_RETURN(AnonymousMemory memory, AnonymousMemory::Map(num_bytes, "checkpoint.buffer_bytes"));
  std::memset(memory.base(), 0, static_cast<size_t>(num_bytes));
  return std::unique_ptr<CaptureBuffer>(new CaptureBuffer(std::move(memory)));
}

float* CaptureBuffer::Push(size_t num_floats) {
  size_t begin = 0, room_end = num_floats_;
  if (!arrays_.empty()) {
    const Array &oldest = arrays_.front(), &newest = arrays_.back();
    const bool wrapped = newest.begin < oldest.begin;
    if (wrapped || num_floats_ - newest.end < num_floats) {
      // Behind the newest and before the oldest, or from the start again if nothing is there yet.
      begin = wrapped ? newest.end : 0;
      room_end = oldest.begin;
    } else {
      begin = newest.end;
    }
  }
  if (room_end - begin < num_floats) return nullptr;
  arrays_.push_back({begin, begin + num_floats});
  return base_ + begin;
}

void CaptureBuffer::Pop() {
  EPS_CHECK(!arrays_.empty());
  arrays_.pop_front();
}

}  // namespace eps::server
