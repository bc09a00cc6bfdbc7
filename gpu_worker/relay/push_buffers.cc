#include "gpu_worker/relay/push_buffers.h"

#include <utility>

namespace eps::worker {

PushBuffers::Block PushBuffers::Take(int64_t num_bytes) {
  FreeList& list = *free_;
  MutexLock lock(list.mu);
  // Layers come in few sizes, so only a block of the very size is taken: no small gradient sits in a large block.
  for (Block& block : list.blocks) {
    if (block.num_bytes != num_bytes) continue;
    Block taken = std::move(block);
    block = std::move(list.blocks.back());
    list.blocks.pop_back();
    return taken;
  }
  // Sizes change with the vnodes that a worker holds.
  while (list.held_bytes + num_bytes > keep_bytes_ && !list.blocks.empty()) {
    list.held_bytes -= list.blocks.back().num_bytes;
    list.blocks.pop_back();
  }
  list.held_bytes += num_bytes;
  return {std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(num_bytes)), num_bytes};
}

PushMemory PushBuffers::Acquire(int64_t num_bytes) {
  Block block = Take(num_bytes);
  PushMemory buffer;
  buffer.bytes = absl::MakeSpan(block.bytes.get(), static_cast<size_t>(num_bytes));
  buffer.owner = std::shared_ptr<void>(block.bytes.release(), [list = free_, num_bytes](void* bytes) {
    Block back{std::unique_ptr<std::byte[]>(static_cast<std::byte*>(bytes)), num_bytes};
    MutexLock lock(list->mu);
    list->blocks.push_back(std::move(back));
  });
  return buffer;
}

int64_t PushBuffers::held_bytes() const {
  MutexLock lock(free_->mu);
  return free_->held_bytes;
}

}  // namespace eps::worker
