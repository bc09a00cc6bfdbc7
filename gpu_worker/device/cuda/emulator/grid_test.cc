#include "gpu_worker/device/cuda/emulator/grid.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gpu_worker/device/cuda/launch.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

class GridTest : public ::testing::TestWithParam<GridOrder> {
 protected:
  GridRunner grid_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Orders, GridTest, ::testing::Values(GridOrder::kForward, GridOrder::kBackward));

TEST_P(GridTest, RunsEveryThreadOfEveryBlockOnce) {
  std::vector<int> runs(3 * 2 * 64, 0);
  grid_.Run({.blocks_x = 3, .blocks_y = 2, .threads = 64}, [&] {
    EXPECT_EQ(blockDim.x, 64u);
    EXPECT_EQ(gridDim.x, 3u);
    EXPECT_EQ(gridDim.y, 2u);
    ++runs[(blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x];
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST_P(GridTest, ABarrierHoldsTheWholeBlock) {
  std::vector<int> sums(4, 0);
  grid_.Run({.blocks_x = 4, .threads = 96}, [&] {
    __shared__ int values[96];
    for (int round = 0; round < 5; ++round) {
      values[threadIdx.x] = static_cast<int>(threadIdx.x) + round;
      __syncthreads();
      const int sum = std::accumulate(values, values + 96, 0);
      __syncthreads();
      if (threadIdx.x == 40) sums[blockIdx.x] += sum;
    }
  });
  EXPECT_EQ(sums, std::vector<int>(4, 5 * 95 * 48 + 96 * 10));
}

TEST_P(GridTest, SyncthreadsOrForgetsWhatWasSaidBefore) {
  std::vector<int> seen;
  grid_.Run({.threads = 64}, [&] {
    for (const bool plain : {false, true}) {
      for (unsigned round = 0; round < 6; ++round) {
        const int any = __syncthreads_or(round % 2 == 0 && threadIdx.x == 10 + round);
        if (plain) __syncthreads();
        if (threadIdx.x == 63) seen.push_back(any);
      }
    }
  });
  EXPECT_EQ(seen, (std::vector<int>{1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0}));
}

TEST_P(GridTest, WarpsExchangeAmongThemselves) {
  std::vector<float> sums(128), from(128);
  std::vector<uint32_t> ballots(128);
  grid_.Run({.threads = 128}, [&] {
    float sum = static_cast<float>(threadIdx.x);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(kWarpMask, sum, distance);
    sums[threadIdx.x] = sum;
    from[threadIdx.x] = __shfl_sync(kWarpMask, static_cast<float>(threadIdx.x), 5);
    ballots[threadIdx.x] = __ballot_sync(kWarpMask, threadIdx.x % 3 == 0);
  });
  for (size_t i = 0; i < 128; ++i) {
    const size_t warp = i / 32;
    EXPECT_EQ(sums[i], static_cast<float>(32 * 32 * warp + 31 * 16)) << i;
    EXPECT_EQ(from[i], static_cast<float>(32 * warp + 5)) << i;
    for (size_t lane = 0; lane < 32; ++lane) {
      EXPECT_EQ((ballots[i] >> lane) & 1, (32 * warp + lane) % 3 == 0 ? 1u : 0u) << i << " " << lane;
    }
  }
}

TEST_P(GridTest, SharedMemoryBeginsWithoutNumbers) {
  int numbers = 0;
  for (int run = 0; run < 2; ++run) {
    grid_.Run({.blocks_x = 2, .threads = 32, .shared_bytes = 32 * 4}, [&] {
      float* shared = static_cast<float*>(emulator::DynamicSharedMemory());
      numbers += std::isnan(shared[threadIdx.x]) ? 0 : 1;
      shared[threadIdx.x] = 1;
    });
  }
  EXPECT_EQ(numbers, 0);
}

TEST_P(GridTest, GridsOfAnySizeFollowEachOther) {
  for (const int threads : {1024, 32, 256}) {
    int count = 0;
    grid_.Run({.blocks_x = 2, .threads = threads}, [&] {
      __syncthreads();
      ++count;
    });
    EXPECT_EQ(count, 2 * threads);
  }
}

// What the two orders are for: without the barrier, what a thread reads depends on who ran before it.
TEST(GridOrderTest, AMissingBarrierShows) {
  const auto neighbour = [](GridOrder order) {
    std::vector<float> read(32);
    GridRunner(order).Run({.threads = 32, .shared_bytes = 32 * 4}, [&] {
      float* shared = static_cast<float*>(emulator::DynamicSharedMemory());
      shared[threadIdx.x] = static_cast<float>(threadIdx.x);
      read[threadIdx.x] = shared[(threadIdx.x + 1) % 32];
    });
    return std::count_if(read.begin(), read.end(), [](float x) { return std::isnan(x); });
  };
  EXPECT_EQ(neighbour(GridOrder::kForward), 31);
  EXPECT_EQ(neighbour(GridOrder::kBackward), 1);
}

TEST(GridDeathTest, ThreadsThatWaitForNobodyEndTheProgram) {
  EXPECT_DEATH(GridRunner(GridOrder::kForward)
                   .Run({.threads = 64},
                        [] {
                          if (threadIdx.x < 32) __syncthreads();
                        }),
               "every_thread_waits");
}

}  // namespace
}  // namespace eps::worker::cuda
