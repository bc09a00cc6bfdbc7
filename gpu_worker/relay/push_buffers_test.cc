#include "gpu_worker/relay/push_buffers.h"

#include <cstring>
#include <memory>
#include <utility>

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

TEST(PushBuffersTest, ABufferComesBackWhenItsLastOwnerLetsGo) {
  PushBuffers pool(10000);
  PushMemory first = pool.Acquire(1000);
  EXPECT_EQ(first.bytes.size(), 1000u);
  std::byte* const place = first.bytes.data();
  std::shared_ptr<void> another = first.owner;
  first = {};
  PushMemory second = pool.Acquire(1000);
  EXPECT_NE(second.bytes.data(), place);
  EXPECT_EQ(pool.held_bytes(), 2000);
  another.reset();
  PushMemory third = pool.Acquire(1000);
  EXPECT_EQ(third.bytes.data(), place);
  EXPECT_EQ(pool.held_bytes(), 2000);
}

TEST(PushBuffersTest, SizesDoNotMix) {
  PushBuffers pool(10000);
  { PushMemory large = pool.Acquire(1000); }
  PushMemory small = pool.Acquire(10);
  EXPECT_EQ(small.bytes.size(), 10u);
  EXPECT_EQ(pool.held_bytes(), 1010);
}

TEST(PushBuffersTest, FreeBuffersOfOtherSizesMakeRoom) {
  PushBuffers pool(2000);
  PushMemory used = pool.Acquire(500);
  { PushMemory free = pool.Acquire(1000); }
  EXPECT_EQ(pool.held_bytes(), 1500);
  PushMemory other = pool.Acquire(600);
  EXPECT_EQ(pool.held_bytes(), 1100);
  PushMemory more = pool.Acquire(1500);  // what is in use is never refused
  EXPECT_EQ(pool.held_bytes(), 2600);
}

TEST(PushBuffersTest, ABufferOutlivesThePool) {
  auto pool = std::make_unique<PushBuffers>(16);
  PushMemory buffer = pool->Acquire(16);
  pool.reset();
  std::memset(buffer.bytes.data(), 1, buffer.bytes.size());
  buffer = {};
}

}  // namespace
}  // namespace eps::worker
