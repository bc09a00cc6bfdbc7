#include "gpu_worker/relay/push_buffers.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/byte_size.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLook(20);  // how late who waits for room sees that it is awaited
constexpr int64_t kAlignBytes = 64;

}  // namespace

PushBuffers::PushBuffers(Options options)
    : options_(std::move(options)), state_(std::make_shared<State>(RoundUp(options_.most_bytes, kAlignBytes))) {}

void PushBuffers::BeginPass(bool is_last) {
  is_last_pass_ = is_last;
  MutexLock lock(state_->mu);
  ++state_->pass;
  state_->under_way = 0;
}

absl::StatusOr<PushMemory> PushBuffers::Acquire(int64_t num_bytes, bool may_wait) {
  std::optional<Clock::time_point> waits_since;
  while (true) {
    // Looked at first: where nothing is under way and there is no place all the same, none will come back.
    const UnderWay under_way = LookUnderWay();
    EPS_ASSIGN_OR_RETURN(std::optional<PushMemory> memory, TryTake(num_bytes));
    if (!memory.has_value()) {
      const bool waits = may_wait && is_last_pass_ && under_way.gradients > 0 &&
                         !(options_.is_awaited != nullptr && options_.is_awaited());
      if (waits) {
        if (!waits_since.has_value()) waits_since = Clock::now();
        WaitForRoom(under_way);
        continue;
      }
      EPS_ASSIGN_OR_RETURN(const HostMemory alone, options_.device->NewHostMemory(num_bytes));
      memory = PushMemory{alone.bytes, alone.owner};
    }
    if (waits_since.has_value()) waits_.push_back({*waits_since, Clock::now()});
    return Counted(*std::move(memory));
  }
}

absl::StatusOr<std::optional<PushMemory>> PushBuffers::TryTake(int64_t num_bytes) {
  std::optional<PushMemory> memory = options_.transport->NewPushMemory(num_bytes);
  if (memory.has_value()) {
    transport_has_memory_ = true;
    options_.device->ExpectCopiesTo(memory->bytes);
    return memory;
  }
  if (transport_has_memory_) return std::nullopt;
  return TakeOfBlock(num_bytes);
}

absl::StatusOr<std::optional<PushMemory>> PushBuffers::TakeOfBlock(int64_t num_bytes) {
  if (block_.bytes.empty()) {
    EPS_ASSIGN_OR_RETURN(block_, options_.device->NewHostMemory(RoundUp(options_.most_bytes, kAlignBytes)));
  }
  const int64_t taken_bytes = RoundUp(num_bytes, kAlignBytes);
  std::optional<int64_t> place;
  {
    MutexLock lock(state_->mu);
    place = state_->free_places.Take(taken_bytes);
  }
  if (!place.has_value()) return std::nullopt;
  std::byte* const bytes = block_.bytes.data() + *place;
  auto give_back = [state = state_, block = block_.owner, place = *place, taken_bytes](void*) {
    MutexLock lock(state->mu);
    state->free_places.Return(place, taken_bytes);
  };
  return PushMemory{absl::MakeSpan(bytes, static_cast<size_t>(num_bytes)),
                    std::shared_ptr<void>(bytes, std::move(give_back))};
}

PushBuffers::UnderWay PushBuffers::LookUnderWay() const {
  MutexLock lock(state_->mu);
  return {state_->under_way, state_->times_let_go};
}

void PushBuffers::WaitForRoom(const UnderWay& since) {
  MutexLock lock(state_->mu);
  if (state_->times_let_go == since.times_let_go) state_->let_go.WaitFor(state_->mu, kLook);
}

PushMemory PushBuffers::Counted(PushMemory memory) {
  int64_t pass = 0;
  {
    MutexLock lock(state_->mu);
    pass = state_->pass;
    ++state_->under_way;
  }
  std::byte* const bytes = memory.bytes.data();
  memory.owner = std::shared_ptr<void>(bytes, [state = state_, pass, owner = std::move(memory.owner)](void*) mutable {
    owner.reset();  // first: whoever wakes up is to find the memory there
    MutexLock lock(state->mu);
    if (pass == state->pass) --state->under_way;
    ++state->times_let_go;
    state->let_go.NotifyAll();
  });
  return memory;
}

}  // namespace eps::worker
