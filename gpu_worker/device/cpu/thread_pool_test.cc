#include "gpu_worker/device/cpu/thread_pool.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace eps::worker::cpu {
namespace {

ThreadPool PoolOf(int threads) { return ThreadPool(threads, *HostArena::Map(TileScratchBytes(threads))); }

TEST(ThreadPoolTest, RunsEveryTileOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadPool pool = PoolOf(threads);
    for (const int64_t num_tiles : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> runs(num_tiles);
      pool.ParallelFor(num_tiles, [&](int64_t tile, float*) { ++runs[tile]; });
      for (const std::atomic<int>& count : runs) EXPECT_EQ(count.load(), 1);
    }
  }
}

TEST(ThreadPoolTest, ManySmallJobsFollowEachOther) {
  ThreadPool pool = PoolOf(3);
  int64_t sum = 0;
  for (int round = 0; round < 5000; ++round) {
    std::atomic<int64_t> tiles{0};
    pool.ParallelFor(3, [&](int64_t tile, float*) { tiles += tile + 1; });
    sum += tiles.load();
  }
  EXPECT_EQ(sum, 5000 * 6);
}

// Longer than threads look out before they sleep.
constexpr std::chrono::milliseconds kLong{5};

TEST(ThreadPoolTest, HelpersThatSleepAreWokenUp) {
  ThreadPool pool = PoolOf(3);
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> together{0};
    // Each tile waits for the others: all three threads must come.
    pool.ParallelFor(3, [&](int64_t, float*) {
      ++together;
      while (together.load() < 3) std::this_thread::yield();
    });
    EXPECT_EQ(together.load(), 3);
    if (round % 2 == 1) std::this_thread::sleep_for(kLong);
  }
}

TEST(ThreadPoolTest, ACallerSleepsUntilALongTileIsDone) {
  ThreadPool pool = PoolOf(2);
  for (int round = 0; round < 5; ++round) {
    std::atomic<int> done{0};
    pool.ParallelFor(2, [&](int64_t tile, float*) {
      if (tile == 1) std::this_thread::sleep_for(kLong);
      ++done;
    });
    EXPECT_EQ(done.load(), 2);
  }
}

TEST(ThreadPoolTest, EndsWhetherItsHelpersSleepOrNot) {
  for (const std::chrono::milliseconds idle : {std::chrono::milliseconds(0), kLong}) {
    for (int round = 0; round < 20; ++round) {
      ThreadPool pool = PoolOf(3);
      if (round % 2 == 1) pool.ParallelFor(10, [](int64_t, float*) {});
      std::this_thread::sleep_for(idle);
    }
  }
}

TEST(ThreadPoolTest, ScratchIsWholeHugePages) {
  EXPECT_EQ(TileScratchBytes(1), kHugePageBytes);
  EXPECT_EQ(TileScratchBytes(2), kHugePageBytes);
  EXPECT_EQ(TileScratchBytes(3), 2 * kHugePageBytes);
}

TEST(ThreadPoolTest, ThreadsHaveScratchOfTheirOwn) {
  ThreadPool pool = PoolOf(3);
  std::atomic<bool> clash{false};
  pool.ParallelFor(200, [&](int64_t tile, float* scratch) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(scratch) % 64, 0u);
    const float mark = static_cast<float>(tile);
    for (int64_t i = 1023; i < kTileScratchFloats; i += 1024) scratch[i] = mark;  // the last one too
    for (int64_t i = 1023; i < kTileScratchFloats; i += 1024) clash = clash || scratch[i] != mark;
  });
  EXPECT_FALSE(clash.load());
}

TEST(ThreadPoolTest, HelpersFlushDenormals) {
  ThreadPool pool = PoolOf(2);
  std::atomic<int> denormals{0};
  // The caller is a thread of the test and keeps its own mode: only tiles of the helper count.
  std::atomic<int> tiles_of_helper{0};
  float* const caller_scratch = [&] {
    float* seen = nullptr;
    pool.ParallelFor(1, [&](int64_t, float* scratch) { seen = scratch; });
    return seen;
  }();
  for (int round = 0; round < 100000 && tiles_of_helper.load() == 0; ++round) {
    pool.ParallelFor(64, [&](int64_t, float* scratch) {
      if (scratch == caller_scratch) return std::this_thread::yield();
      volatile float small = 1e-20f, denormal = 1e-40f;
      volatile float product = small * small;  // 1e-40 where denormals are kept
      if (product * 1e30f != 0.0f || denormal * 1e30f != 0.0f) ++denormals;
      ++tiles_of_helper;
    });
  }
  EXPECT_GT(tiles_of_helper.load(), 0) << "the helper never came to help";
  EXPECT_EQ(denormals.load(), 0);
}

}  // namespace
}  // namespace eps::worker::cpu
