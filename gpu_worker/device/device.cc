#include "gpu_worker/device/device.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps::worker {

absl::StatusOr<HostMemory> Device::NewHostMemory(int64_t num_bytes) {
  constexpr size_t kAlignBytes = 64;
  const size_t rounded = (static_cast<size_t>(num_bytes) + kAlignBytes - 1) / kAlignBytes * kAlignBytes;
  if (rounded == 0) return HostMemory();
  std::shared_ptr<void> owner(std::aligned_alloc(kAlignBytes, rounded), &std::free);
  if (owner == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no ", num_bytes, " bytes of host memory"));
  std::byte* start = static_cast<std::byte*>(owner.get());
  return HostMemory{absl::MakeSpan(start, static_cast<size_t>(num_bytes)), std::move(owner)};
}

absl::string_view StreamName(StreamId id) {
  switch (id) {
    case StreamId::kCompute:
      return "compute";
    case StreamId::kIn:
      return "in";
    case StreamId::kOut:
      return "out";
  }
  return "unknown";
}

absl::string_view WaitCauseName(WaitCause cause) {
  switch (cause) {
    case WaitCause::kNone:
      return "none";
    case WaitCause::kPull:
      return "pull";
    case WaitCause::kStash:
      return "stash";
    case WaitCause::kPush:
      return "push";
    case WaitCause::kVersion:
      return "version";
    case WaitCause::kRoom:
      return "room";
  }
  return "unknown";
}

}  // namespace eps::worker
