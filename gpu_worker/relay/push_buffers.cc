#include "gpu_worker/relay/push_buffers.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook(20);  // how late who waits for room sees that it is awaited

}  // namespace

void PushBuffers::BeginPass(bool is_bounded) {
  is_bounded_ = is_bounded;
  MutexLock lock(state_->mu);
  ++state_->pass;
  state_->used_bytes = 0;
  state_->transport_bytes = 0;
}

void PushBuffers::Return(State& state, const Share& share) {
  MutexLock lock(state.mu);
  if (share.pass == state.pass) {
    state.used_bytes -= share.num_bytes;
    if (share.is_transports) state.transport_bytes -= share.num_bytes;
  }
  ++state.returns;
  state.returned.NotifyAll();
}

std::optional<PushBuffers::Room> PushBuffers::LookForRoom(int64_t num_bytes) {
  State& state = *state_;
  int64_t seen_returns = 0;
  {
    MutexLock lock(state.mu);
    seen_returns = state.returns;
  }
  std::optional<PushMemory> memory = options_.transport->NewPushMemory(num_bytes);
  const bool is_unbounded = !is_bounded_ || (options_.is_awaited != nullptr && options_.is_awaited());
  MutexLock lock(state.mu);
  // While some of the transport's memory is this pass's there will be more of it, and other memory would come on top.
  const bool fits = state.transport_bytes == 0 && state.used_bytes + num_bytes <= options_.most_bytes;
  if (memory.has_value() || is_unbounded || state.used_bytes == 0 || fits) {
    state.used_bytes += num_bytes;
    if (memory.has_value()) state.transport_bytes += num_bytes;
    return Room{{state.pass, num_bytes, memory.has_value()}, std::move(memory)};
  }
  if (state.returns == seen_returns) state.returned.WaitFor(state.mu, kLook);
  return std::nullopt;
}

absl::StatusOr<PushMemory> PushBuffers::Acquire(int64_t num_bytes) {
  const Clock::time_point begin = Clock::now();
  std::optional<Room> room = LookForRoom(num_bytes);
  if (!room.has_value()) {
    while (!room.has_value()) room = LookForRoom(num_bytes);
    waits_.push_back({begin, Clock::now()});
  }
  if (room->memory.has_value()) {
    options_.device->ExpectCopiesTo(room->memory->bytes);
    const absl::Span<std::byte> bytes = room->memory->bytes;
    auto let_go = [state = state_, share = room->share, owner = std::move(room->memory->owner)](void*) mutable {
      owner.reset();
      Return(*state, share);
    };
    return PushMemory{bytes, std::shared_ptr<void>(bytes.data(), std::move(let_go))};
  }
  absl::StatusOr<HostMemory> taken = Take(num_bytes);
  if (!taken.ok()) {
    Return(*state_, room->share);
    return taken.status();
  }
  const absl::Span<std::byte> bytes = taken->bytes;
  auto let_go = [state = state_, share = room->share, block = *std::move(taken),
                 most_bytes = options_.most_bytes](void*) mutable {
    {
      MutexLock lock(state->mu);
      if (state->held_bytes <= most_bytes) {
        state->blocks.push_back(std::move(block));
      } else {  // more than this was needed for once; it is given back outside of the lock
        state->held_bytes -= share.num_bytes;
      }
    }
    block = {};
    Return(*state, share);
  };
  return PushMemory{bytes, std::shared_ptr<void>(bytes.data(), std::move(let_go))};
}

std::optional<HostMemory> PushBuffers::TakeFree(int64_t num_bytes, std::vector<HostMemory>& freed) {
  State& state = *state_;
  MutexLock lock(state.mu);
  // Layers come in few sizes, so only a block of the very size is taken: no small gradient sits in a large block.
  for (HostMemory& block : state.blocks) {
    if (static_cast<int64_t>(block.bytes.size()) != num_bytes) continue;
    HostMemory taken = std::exchange(block, std::move(state.blocks.back()));
    state.blocks.pop_back();
    return taken;
  }
  // Sizes change with the layers, and with the vnodes that a worker holds.
  while (state.held_bytes + num_bytes > options_.most_bytes && !state.blocks.empty()) {
    state.held_bytes -= static_cast<int64_t>(state.blocks.back().bytes.size());
    freed.push_back(std::move(state.blocks.back()));
    state.blocks.pop_back();
  }
  state.held_bytes += num_bytes;
  return std::nullopt;
}

absl::StatusOr<HostMemory> PushBuffers::Take(int64_t num_bytes) {
  std::vector<HostMemory> freed;
  if (std::optional<HostMemory> taken = TakeFree(num_bytes, freed); taken.has_value()) return *std::move(taken);
  freed.clear();
  absl::StatusOr<HostMemory> made = options_.device->NewHostMemory(num_bytes);
  if (made.ok()) return made;
  MutexLock lock(state_->mu);
  state_->held_bytes -= num_bytes;
  return made;
}

int64_t PushBuffers::held_bytes() const {
  MutexLock lock(state_->mu);
  return state_->held_bytes;
}

}  // namespace eps::worker
