#include "gpu_worker/device/cuda/host_pins.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"

namespace eps::worker::cuda {
namespace {

absl::Span<const std::byte> Bytes(uintptr_t begin, uintptr_t end) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(begin), end - begin);
}

uintptr_t Begin(absl::Span<const std::byte> host) { return reinterpret_cast<uintptr_t>(host.data()); }
uintptr_t End(absl::Span<const std::byte> host) { return Begin(host) + host.size(); }

}  // namespace

// Under the lock: who finds nothing left may unmap it.
void HostPins::Unpin(uintptr_t begin, uintptr_t end) {
  const auto first = pieces_.lower_bound(begin), last = pieces_.lower_bound(end);
  for (auto piece = first; piece != last; ++piece) {
    if (piece->second.state == State::kPinned) runtime_->UnregisterHost(Bytes(piece->first, piece->second.end));
  }
  pieces_.erase(first, last);
}

void HostPins::Unpin(absl::Span<const std::byte> host) {
  MutexLock lock(mu_);
  Unpin(Begin(host), End(host));
}

void HostPins::LetGo() {
  MutexLock lock(mu_);
  Unpin(0, UINTPTR_MAX);
}

uintptr_t HostPins::FirstPage(absl::Span<const std::byte> host) { return Begin(host) / kPageBytes * kPageBytes; }
uintptr_t HostPins::EndPage(absl::Span<const std::byte> host) {
  return (End(host) + kPageBytes - 1) / kPageBytes * kPageBytes;
}

HostPins::Pieces::const_iterator HostPins::FindFrom(uintptr_t at) const {
  const auto next = pieces_.upper_bound(at);
  return next != pieces_.begin() && std::prev(next)->second.end > at ? std::prev(next) : next;
}

std::vector<std::pair<uintptr_t, uintptr_t>> HostPins::Claim(absl::Span<const std::byte> host) {
  std::vector<std::pair<uintptr_t, uintptr_t>> claimed;
  const uintptr_t last = EndPage(host);
  MutexLock lock(mu_);
  for (uintptr_t at = FirstPage(host); at < last;) {
    const auto next = FindFrom(at);
    if (next != pieces_.end() && next->first <= at) {
      if (Piece& seen = pieces_[next->first]; seen.state == State::kRefused && !seen.is_last_try) {
        seen.state = State::kAsked;
        seen.is_last_try = true;
        claimed.emplace_back(next->first, seen.end);
      }
      at = next->second.end;
      continue;
    }
    uintptr_t end = std::min<uintptr_t>(last, at + kPieceBytes);
    if (next != pieces_.end()) end = std::min(end, next->first);
    claimed.emplace_back(at, end);
    pieces_[at] = {.end = end};
    at = end;
  }
  return claimed;
}

bool HostPins::IsSettled(absl::Span<const std::byte> host) const {
  for (auto piece = FindFrom(Begin(host)); piece != pieces_.end() && piece->first < End(host); ++piece) {
    if (piece->second.state == State::kAsked) return false;
  }
  return true;
}

absl::Status HostPins::Pin(absl::Span<const std::byte> host, HostAccess access) {
  if (host.empty()) return absl::OkStatus();
  absl::Status status;
  for (const auto& [begin, end] : Claim(host)) {
    const absl::Status pinned = runtime_->RegisterHost(Bytes(begin, end), access);
    if (pinned.ok() && access == HostAccess::kRead) mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ);
    if (status.ok()) status = pinned;
    MutexLock lock(mu_);
    pieces_[begin].state = pinned.ok() ? State::kPinned : State::kRefused;
    settled_.NotifyAll();
  }
  MutexLock lock(mu_);
  while (!IsSettled(host)) settled_.Wait(mu_);
  return status;
}

std::vector<absl::Span<const std::byte>> HostPins::Parts(absl::Span<const std::byte> host) const {
  std::vector<absl::Span<const std::byte>> parts;
  bool last_is_loose = false;
  MutexLock lock(mu_);
  auto piece = FindFrom(Begin(host));
  for (uintptr_t at = Begin(host); at < End(host);) {
    while (piece != pieces_.end() && piece->second.end <= at) ++piece;
    uintptr_t end = End(host);
    bool loose = true;
    if (piece != pieces_.end() && piece->first <= at) {
      end = std::min(end, piece->second.end);
      loose = piece->second.state != State::kPinned;
    } else if (piece != pieces_.end()) {
      end = std::min(end, piece->first);
    }
    if (loose && last_is_loose) {
      const absl::Span<const std::byte> before = parts.back();
      parts.back() = Bytes(Begin(before), end);
    } else {
      parts.push_back(Bytes(at, end));
    }
    last_is_loose = loose;
    at = end;
  }
  return parts;
}

int64_t HostPins::loose_bytes(absl::Span<const std::byte> host) const {
  auto num_bytes = static_cast<int64_t>(host.size());
  MutexLock lock(mu_);
  for (auto piece = FindFrom(Begin(host)); piece != pieces_.end() && piece->first < End(host); ++piece) {
    if (piece->second.state != State::kPinned) continue;
    num_bytes -= static_cast<int64_t>(std::min(piece->second.end, End(host)) - std::max(piece->first, Begin(host)));
  }
  return num_bytes;
}

int64_t HostPins::pinned_bytes() const {
  MutexLock lock(mu_);
  int64_t num_bytes = 0;
  for (const auto& [begin, piece] : pieces_) {
    if (piece.state == State::kPinned) num_bytes += static_cast<int64_t>(piece.end - begin);
  }
  return num_bytes;
}

}  // namespace eps::worker::cuda
