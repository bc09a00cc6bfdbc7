#include "gpu_worker/device/cuda/host_pins.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"

namespace eps::worker::cuda {
namespace {

absl::Span<const std::byte> Bytes(uintptr_t begin, uintptr_t end) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(begin), end - begin);
}

}  // namespace

HostPins::~HostPins() {
  MutexLock lock(mu_);
  for (const auto& [begin, piece] : pieces_) {
    if (piece.pinned) runtime_->UnregisterHost(Bytes(begin, piece.end));
  }
}

absl::Status HostPins::Pin(absl::Span<const std::byte> host) {
  if (host.empty()) return absl::OkStatus();
  const auto start = reinterpret_cast<uintptr_t>(host.data());
  const uintptr_t last = (start + host.size() + kPageBytes - 1) / kPageBytes * kPageBytes;
  absl::Status status;
  std::vector<uintptr_t> added;
  MutexLock lock(mu_);
  for (uintptr_t at = start / kPageBytes * kPageBytes; at < last;) {
    const auto next = pieces_.upper_bound(at);
    if (next != pieces_.begin() && std::prev(next)->second.end > at) {
      at = std::prev(next)->second.end;  // seen before
      continue;
    }
    uintptr_t end = std::min<uintptr_t>(last, at + kPieceBytes);
    if (next != pieces_.end()) end = std::min(end, next->first);
    if (status.ok()) status = runtime_->RegisterHost(Bytes(at, end));
    pieces_[at] = {.end = end, .pinned = status.ok()};
    added.push_back(at);
    at = end;
  }
  if (status.ok()) return status;
  for (const uintptr_t begin : added) {
    Piece& piece = pieces_[begin];
    if (piece.pinned) runtime_->UnregisterHost(Bytes(begin, piece.end));
    piece.pinned = false;
  }
  return status;
}

int64_t HostPins::pinned_bytes() const {
  MutexLock lock(mu_);
  int64_t num_bytes = 0;
  for (const auto& [begin, piece] : pieces_) {
    if (piece.pinned) num_bytes += static_cast<int64_t>(piece.end - begin);
  }
  return num_bytes;
}

}  // namespace eps::worker::cuda
