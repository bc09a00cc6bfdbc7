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

HostPins::~HostPins() {
  MutexLock lock(mu_);
  for (const auto& [begin, piece] : pieces_) {
    if (piece.state == State::kPinned) runtime_->UnregisterHost(Bytes(begin, piece.end));
  }
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
      at = next->second.end;  // seen before
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
    if (status.ok()) status = runtime_->RegisterHost(Bytes(begin, end), access);
    if (status.ok() && access == HostAccess::kRead) mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ);
    MutexLock lock(mu_);
    pieces_[begin].state = status.ok() ? State::kPinned : State::kRefused;
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

int64_t HostPins::pinned_bytes() const {
  MutexLock lock(mu_);
  int64_t num_bytes = 0;
  for (const auto& [begin, piece] : pieces_) {
    if (piece.state == State::kPinned) num_bytes += static_cast<int64_t>(piece.end - begin);
  }
  return num_bytes;
}

}  // namespace eps::worker::cuda
