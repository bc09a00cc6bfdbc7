#include "common/base/anonymous_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/parallel_for.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr int64_t kPieceBytes = int64_t{64} << 20;  // that a thread populates at a time

void TouchPages(std::byte* begin, int64_t num_bytes) {
  constexpr int64_t kLeastPageBytes = 4096;
  for (int64_t at = 0; at < num_bytes; at += kLeastPageBytes) {
    auto* const byte = const_cast<volatile std::byte*>(begin + at);
    *byte = *byte;
  }
}

}  // namespace

absl::StatusOr<AnonymousMemory> AnonymousMemory::Map(int64_t num_bytes, absl::string_view what) {
  EPS_CHECK(num_bytes >= 0);
  AnonymousMemory memory;
  if (num_bytes == 0) return memory;
  void* base =
      mmap(nullptr, static_cast<size_t>(num_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat(what, ": ", num_bytes, " bytes (", FormatByteSize(num_bytes),
                                                     ") of memory: ", std::strerror(errno)));
  }
  // Advice only: without huge pages everything works, a little slower.
  madvise(base, static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
  memory.base_ = static_cast<std::byte*>(base);
  memory.num_bytes_ = num_bytes;
  return memory;
}

void AnonymousMemory::Populate() const {
  const int64_t num_pieces = (num_bytes_ + kPieceBytes - 1) / kPieceBytes;
  ParallelFor(static_cast<size_t>(num_pieces), [this](size_t piece) {
    const int64_t begin = static_cast<int64_t>(piece) * kPieceBytes;
    const int64_t num_bytes = std::min(kPieceBytes, num_bytes_ - begin);
    // What cannot be had now is asked for again by who writes there. Linux before 5.14 does not know the advice.
    const int failed = madvise(base_ + begin, static_cast<size_t>(num_bytes), MADV_POPULATE_WRITE);
    if (failed != 0 && errno == EINVAL) TouchPages(base_ + begin, num_bytes);
  });
}

AnonymousMemory::AnonymousMemory(AnonymousMemory&& other) noexcept
    : base_(std::exchange(other.base_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}

AnonymousMemory& AnonymousMemory::operator=(AnonymousMemory&& other) noexcept {
  std::swap(base_, other.base_);
  std::swap(num_bytes_, other.num_bytes_);
  return *this;
}

AnonymousMemory::~AnonymousMemory() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(num_bytes_));
}

}  // namespace eps
