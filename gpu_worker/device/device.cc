#include "gpu_worker/device/device.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
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

}  // namespace eps::worker
