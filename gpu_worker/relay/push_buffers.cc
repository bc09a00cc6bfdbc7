#include "gpu_worker/relay/push_buffers.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

std::optional<HostMemory> PushBuffers::TakeFree(int64_t num_bytes, std::vector<HostMemory>& freed) {
  FreeList& list = *free_;
  MutexLock lock(list.mu);
  // Layers come in few sizes, so only a block of the very size is taken: no small gradient sits in a large block.
  for (HostMemory& block : list.blocks) {
    if (static_cast<int64_t>(block.bytes.size()) != num_bytes) continue;
    HostMemory taken = std::exchange(block, std::move(list.blocks.back()));
    list.blocks.pop_back();
    return taken;
  }
  // Sizes change with the vnodes that a worker holds.
  while (list.held_bytes + num_bytes > keep_bytes_ && !list.blocks.empty()) {
    list.held_bytes -= static_cast<int64_t>(list.blocks.back().bytes.size());
    freed.push_back(std::move(list.blocks.back()));
    list.blocks.pop_back();
  }
  list.held_bytes += num_bytes;
  return std::nullopt;
}

absl::StatusOr<HostMemory> PushBuffers::Take(int64_t num_bytes) {
  std::vector<HostMemory> freed;
  if (std::optional<HostMemory> taken = TakeFree(num_bytes, freed); taken.has_value()) return *std::move(taken);
  freed.clear();
  absl::StatusOr<HostMemory> made = device_.NewHostMemory(num_bytes);
  if (made.ok()) return made;
  MutexLock lock(free_->mu);
  free_->held_bytes -= num_bytes;
  return made;
}

absl::StatusOr<PushMemory> PushBuffers::Acquire(int64_t num_bytes) {
  EPS_ASSIGN_OR_RETURN(HostMemory block, Take(num_bytes));
  PushMemory buffer;
  buffer.bytes = block.bytes;
  buffer.owner = std::shared_ptr<void>(block.bytes.data(), [list = free_, block](void*) {
    MutexLock lock(list->mu);
    list->blocks.push_back(block);
  });
  return buffer;
}

int64_t PushBuffers::held_bytes() const {
  MutexLock lock(free_->mu);
  return free_->held_bytes;
}

}  // namespace eps::worker
