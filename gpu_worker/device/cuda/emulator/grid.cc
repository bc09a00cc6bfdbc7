#include "gpu_worker/device/cuda/emulator/grid.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/emulator/fiber.h"
#include "gpu_worker/device/cuda/launch.h"

constinit thread_local eps::worker::cuda::Index3 threadIdx, blockIdx, blockDim, gridDim;

namespace eps::worker::cuda {
namespace {

constexpr int kWarpThreads = 32;
constexpr int kMaxBlockThreads = 1024;

// A barrier that is used again and again. Values that its members leave for each other lie in two turns of slots: who
// has left phase p may already write for p + 1 while others read what p was about, and none of them writes for p + 2
// before all have come to p + 1.
struct Barrier {
  int members = 0;
  int arrived = 0;
  uint64_t phase = 0;

  size_t turn() const { return phase % 2; }
};

struct Warp {
  Barrier barrier = {.members = kWarpThreads};
  std::array<std::array<uint64_t, kWarpThreads>, 2> values = {};
  std::array<uint32_t, 2> ballots = {};  // a bit of each thread, in the same turns
};

struct EmulatedThread {
  unsigned index = 0;
  Fiber* fiber = nullptr;  // from where it begins until it is finished
  bool finished = false;
  const Barrier* waits_at = nullptr;
  uint64_t waits_in_phase = 0;

  bool can_run() const { return !finished && (waits_at == nullptr || waits_at->phase != waits_in_phase); }
};

}  // namespace

// Runs one block after another. A thread has a fiber from where it begins until it is finished, which then serves the
// next: threads that never wait for each other run one after another on a single stack.
class GridRunner::Block {
 public:
  explicit Block(GridOrder order) : order_(order) {}
  ~Block() {
    body_ = nullptr;
    for (const auto& fiber : fibers_) main_.SwitchTo(*fiber);
  }

  void Begin(const LaunchShape& shape, const std::function<void()>& body) {
    EPS_CHECK(shape.threads >= 1 && shape.threads <= kMaxBlockThreads && shape.threads % kWarpThreads == 0);
    EPS_CHECK(shape.shared_bytes <= kMaxSharedBytes);
    EPS_CHECK(shape.blocks_x <= kMaxBlocksX && shape.blocks_y <= kMaxBlocksY);
    body_ = &body;
    threads_.resize(static_cast<size_t>(shape.threads));
    warps_.assign(threads_.size() / kWarpThreads, Warp());
    shared_.resize(static_cast<size_t>(shape.shared_bytes) + kSharedAlignBytes);
    block_.members = shape.threads;
  }

  void Run() {
    std::fill(shared_.begin(), shared_.end(), std::byte{0xFF});
    for (size_t i = 0; i < threads_.size(); ++i) threads_[i] = {.index = static_cast<unsigned>(i)};
    unfinished_ = threads_.size();
    main_.SwitchTo(FiberOf(order_ == GridOrder::kForward ? threads_.front() : threads_.back()));
  }

  void* shared() {
    const uintptr_t at = reinterpret_cast<uintptr_t>(shared_.data());
    return reinterpret_cast<void*>((at + kSharedAlignBytes - 1) / kSharedAlignBytes * kSharedAlignBytes);
  }
  Barrier& barrier() { return block_; }
  Warp& warp() { return warps_[threadIdx.x / kWarpThreads]; }
  // What a thread has said in __syncthreads_or, in two turns as a Warp's values.
  std::array<bool, 2>& any() { return any_; }

  // In a thread: until all members have come. The last one to come runs `last`.
  template <typename Fn>
  void ArriveAt(Barrier& barrier, const Fn& last) {
    if (++barrier.arrived == barrier.members) {
      barrier.arrived = 0;
      last();
      ++barrier.phase;
      return;
    }
    EmulatedThread& thread = threads_[threadIdx.x];
    thread.waits_at = &barrier;
    thread.waits_in_phase = barrier.phase;
    thread.fiber->SwitchTo(FiberOf(NextAfter(thread.index)));
    thread.waits_at = nullptr;
  }

 private:
  static constexpr size_t kSharedAlignBytes = 16;

  // Whoever may run and is next in order behind thread `index`, and behind the last one the first: of its own warp, as long
  // as one of these may, since their stacks are in the cache.
  EmulatedThread& NextAfter(size_t index) {
    const size_t first = index / kWarpThreads * kWarpThreads;
    if (EmulatedThread* next = NextWithin(first, kWarpThreads, index)) return *next;
    EmulatedThread* next =
        NextWithin(0, threads_.size(), order_ == GridOrder::kForward ? first + kWarpThreads - 1 : first);
    const bool every_thread_waits = next == nullptr;  // and nobody is left to come
    EPS_CHECK(!every_thread_waits);
    return *next;
  }

  // The same among `count` threads from `first` on; null: none of them may.
  EmulatedThread* NextWithin(size_t first, size_t count, size_t index) {
    for (size_t i = 0; i < count; ++i) {
      index = order_ == GridOrder::kForward ? (index + 1 < first + count ? index + 1 : first)
                                            : (index > first ? index - 1 : first + count - 1);
      if (threads_[index].can_run()) return &threads_[index];
    }
    return nullptr;
  }

  // What is to be switched to for `thread` to go on, or to begin; threadIdx is set for it.
  Fiber& FiberOf(EmulatedThread& thread) {
    threadIdx = {thread.index, 0, 0};
    if (thread.fiber == nullptr) {
      if (free_.empty()) AddFiber();
      thread.fiber = free_.back();
      free_.pop_back();
    }
    return *thread.fiber;
  }

  void AddFiber() {
    fibers_.push_back(std::make_unique<Fiber>([this] {
      while (body_ != nullptr) {
        EmulatedThread& thread = threads_[threadIdx.x];
        Fiber& fiber = *thread.fiber;
        (*body_)();
        thread.finished = true;
        free_.push_back(&fiber);
        Fiber& next = --unfinished_ == 0 ? main_ : FiberOf(NextAfter(thread.index));
        if (&next != &fiber) fiber.SwitchTo(next);
      }
    }));
    free_.push_back(fibers_.back().get());
  }

  const GridOrder order_;
  const std::function<void()>* body_ = nullptr;  // null: the fibers end
  std::vector<EmulatedThread> threads_;          // of the block that runs
  size_t unfinished_ = 0;                        // of these
  Fiber main_;                                   // who runs the block
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> free_;  // that no thread has; the last one was the last to run
  std::vector<Warp> warps_;
  Barrier block_;
  std::array<bool, 2> any_ = {};
  std::vector<std::byte> shared_;
};

namespace {

thread_local GridRunner::Block* running = nullptr;

// All have read what the phase before was about once all are here.
void ArriveAtWarp(Warp& warp) {
  running->ArriveAt(warp.barrier, [&warp] { warp.ballots[1 - warp.barrier.turn()] = 0; });
}

}  // namespace

GridRunner::GridRunner(GridOrder order) : order_(order), block_(std::make_unique<Block>(order)) {}
GridRunner::~GridRunner() = default;

void GridRunner::Run(const LaunchShape& shape, const std::function<void()>& body) {
  block_->Begin(shape, body);
  running = block_.get();
  gridDim = {static_cast<unsigned>(shape.blocks_x), static_cast<unsigned>(shape.blocks_y), 1};
  blockDim = {static_cast<unsigned>(shape.threads), 1, 1};
  const int64_t num_blocks = shape.blocks_x * shape.blocks_y;
  for (int64_t i = 0; i < num_blocks; ++i) {
    const int64_t block = order_ == GridOrder::kForward ? i : num_blocks - 1 - i;
    blockIdx = {static_cast<unsigned>(block % shape.blocks_x), static_cast<unsigned>(block / shape.blocks_x), 0};
    block_->Run();
  }
  running = nullptr;
}

namespace emulator {

void* DynamicSharedMemory() { return running->shared(); }

void SyncThreads() { SyncThreadsOr(false); }

bool SyncThreadsOr(bool value) {
  Barrier& barrier = running->barrier();
  const size_t turn = barrier.turn();
  running->any()[turn] |= value;
  running->ArriveAt(barrier, [turn] { running->any()[1 - turn] = false; });
  return running->any()[turn];
}

uint64_t Exchange(uint64_t value, unsigned from) {
  Warp& warp = running->warp();
  const size_t turn = warp.barrier.turn();
  warp.values[turn][threadIdx.x % kWarpThreads] = value;
  ArriveAtWarp(warp);
  return warp.values[turn][from];
}

uint32_t Ballot(bool value) {
  Warp& warp = running->warp();
  const size_t turn = warp.barrier.turn();
  warp.ballots[turn] |= uint32_t{value} << threadIdx.x % kWarpThreads;
  ArriveAtWarp(warp);
  return warp.ballots[turn];
}

}  // namespace emulator
}  // namespace eps::worker::cuda
