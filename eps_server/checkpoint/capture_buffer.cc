#include "eps_server/checkpoint/capture_buffer.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/status_macros.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<CaptureBuffer>> CaptureBuffer::Create(int64_t num_bytes) {
  EPS_CHECK(num_bytes >= static_cast<int64_t>(sizeof(float)));
  const auto map_bytes = static_cast<size_t>(num_bytes);
  void* base = mmap(nullptr, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("checkpoint.buffer_bytes: ", num_bytes, " bytes (",
                                                     FormatByteSize(num_bytes), ") of memory: ", strerror(errno)));
  }
  madvise(base, map_bytes, MADV_HUGEPAGE);  // advice only
  memset(base, 0, map_bytes);
  return std::unique_ptr<CaptureBuffer>(new CaptureBuffer(static_cast<float*>(base), map_bytes / sizeof(float)));
}

CaptureBuffer::~CaptureBuffer() { munmap(base_, num_floats_ * sizeof(float)); }

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
