#include "gpu_worker/device/cuda/emulator/grid.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
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
  std::unique_ptr<Fiber> fiber;
  unsigned index = 0;
  bool finished = true;
  const Barrier* waits_at = nullptr;
  uint64_t waits_in_phase = 0;

  bool can_run() const { return !finished && (waits_at == nullptr || waits_at->phase != waits_in_phase); }
};

}  // namespace

// Runs one block after another; its fibers serve them all.
class GridRunner::Block {
 public:
  explicit Block(GridOrder order) : order_(order) {}
  ~Block() {
    body_ = nullptr;
    for (const auto& thread : threads_) main_.SwitchTo(*thread->fiber);
  }

  void Begin(const LaunchShape& shape, const std::function<void()>& body) {
    EPS_CHECK(shape.threads >= 1 && shape.threads <= kMaxBlockThreads && shape.threads % kWarpThreads == 0);
    EPS_CHECK(shape.shared_bytes <= kMaxSharedBytes);
    EPS_CHECK(shape.blocks_x <= kMaxBlocksX && shape.blocks_y <= kMaxBlocksY);
    num_threads_ = static_cast<size_t>(shape.threads);
    body_ = &body;
    while (threads_.size() < num_threads_) AddThread();
    shared_.resize(static_cast<size_t>(shape.shared_bytes) + kSharedAlignBytes);
    block_.members = shape.threads;
  }

  void Run() {
    std::fill(shared_.begin(), shared_.end(), std::byte{0xFF});
    for (size_t i = 0; i < num_threads_; ++i) threads_[i]->finished = false;
    unfinished_ = num_threads_;
    const size_t last = order_ == GridOrder::kForward ? num_threads_ - 1 : 0;
    main_.SwitchTo(NextAfter(last));
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
    EmulatedThread& thread = *threads_[threadIdx.x];
    thread.waits_at = &barrier;
    thread.waits_in_phase = barrier.phase;
    thread.fiber->SwitchTo(NextAfter(thread.index));
    thread.waits_at = nullptr;
  }

 private:
  static constexpr size_t kSharedAlignBytes = 16;

  // Whoever may run and is next in order behind thread `index`, and behind the last one the first: its fiber, for which
  // threadIdx is set.
  Fiber& NextAfter(size_t index) {
    for (size_t i = 0; i < num_threads_; ++i) {
      index = order_ == GridOrder::kForward ? (index + 1 < num_threads_ ? index + 1 : 0)
                                            : (index > 0 ? index - 1 : num_threads_ - 1);
      EmulatedThread& thread = *threads_[index];
      if (!thread.can_run()) continue;
      threadIdx = {thread.index, 0, 0};
      return *thread.fiber;
    }
    constexpr bool kEveryThreadWaits = true;  // and nobody is left to come
    EPS_CHECK(!kEveryThreadWaits);
  }

  void AddThread() {
    EmulatedThread& thread = *threads_.emplace_back(std::make_unique<EmulatedThread>());
    thread.index = static_cast<unsigned>(threads_.size() - 1);
    thread.fiber = std::make_unique<Fiber>([this, &thread] {
      while (body_ != nullptr) {
        (*body_)();
        thread.finished = true;
        thread.fiber->SwitchTo(--unfinished_ == 0 ? main_ : NextAfter(thread.index));
      }
    });
    if (threads_.size() % kWarpThreads == 0) warps_.emplace_back();
  }

  const GridOrder order_;
  const std::function<void()>* body_ = nullptr;           // null: the fibers end
  size_t num_threads_ = 0;                                // of the grid that runs; fibers may be more
  size_t unfinished_ = 0;                                 // of these, in the block that runs
  Fiber main_;                                            // who runs the block
  std::vector<std::unique_ptr<EmulatedThread>> threads_;  // by address: their fibers know them
  std::deque<Warp> warps_;
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
