#include "gpu_worker/relay/push_buffers.h"

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/chunk_range.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// A device on a host that has no memory left, as long as `none_left` is set.
class PoorDevice : public Device {
 public:
  const DeviceProperties& properties() const override { return device_->properties(); }
  int64_t arena_bytes() const override { return device_->arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override { return device_->Address(span); }
  int64_t arena_high_water_bytes() const override { return device_->arena_high_water_bytes(); }
  int64_t outside_bytes() const override { return device_->outside_bytes(); }
  absl::StatusOr<HostMemory> NewHostMemory(int64_t num_bytes) override {
    if (none_left) return absl::ResourceExhaustedError("none left");
    return device_->NewHostMemory(num_bytes);
  }
  Stream& stream(StreamId id) override { return device_->stream(id); }
  std::unique_ptr<Event> NewEvent() override { return device_->NewEvent(); }
  Kernels& kernels() override { return device_->kernels(); }
  void Recover() override { device_->Recover(); }

  bool none_left = false;

 private:
  const std::unique_ptr<Device> device_ = NewCpuDevice({.arena_bytes = 0, .threads = 1}).value();
};

// Hands out memory of its own, once it has any, and keeps count of it.
class RichTransport : public Transport {
 public:
  void HaveMemory(int64_t num_bytes) { left_bytes_ = num_bytes; }
  int64_t left_bytes() const { return left_bytes_; }

  absl::StatusOr<PullTiming> Pull(BlobId, Version, ChunkRange, absl::Span<std::byte>) override {
    return absl::UnimplementedError("not here");
  }
  std::optional<PushMemory> NewPushMemory(int64_t num_bytes) override {
    if (left_bytes_ < num_bytes) return std::nullopt;
    left_bytes_ -= num_bytes;
    auto memory = std::make_shared<std::vector<std::byte>>(num_bytes);
    return PushMemory{absl::MakeSpan(*memory), std::shared_ptr<void>(memory.get(), [this, memory, num_bytes](void*) {
                        left_bytes_ += num_bytes;
                      })};
  }
  void Push(Contribution) override {}
  absl::Status Flush() override { return absl::OkStatus(); }
  void Cancel(absl::Status) override {}

 private:
  std::atomic<int64_t> left_bytes_ = 0;
};

class PushBuffersTest : public ::testing::Test {
 protected:
  PushBuffers Pool(int64_t most_bytes) {
    return PushBuffers(
        {.device = device_.get(), .transport = &transport_, .most_bytes = most_bytes, .is_awaited = [this] {
           return is_awaited_.load();
         }});
  }
  // In a thread of its own, as it waits.
  static std::future<PushMemory> AcquireLater(PushBuffers& pool, int64_t num_bytes) {
    return std::async(std::launch::async, [&pool, num_bytes] { return pool.Acquire(num_bytes).value(); });
  }
  static bool Waits(const std::future<PushMemory>& acquired) {
    return acquired.wait_for(std::chrono::milliseconds(60)) == std::future_status::timeout;
  }

  const std::unique_ptr<PoorDevice> device_ = std::make_unique<PoorDevice>();
  RichTransport transport_;
  std::atomic<bool> is_awaited_ = false;
};

TEST_F(PushBuffersTest, ABufferComesBackWhenItsLastOwnerLetsGo) {
  PushBuffers pool = Pool(10000);
  PushMemory first = pool.Acquire(1000).value();
  EXPECT_EQ(first.bytes.size(), 1000u);
  std::byte* const place = first.bytes.data();
  std::shared_ptr<void> another = first.owner;
  first = {};
  PushMemory second = pool.Acquire(1000).value();
  EXPECT_NE(second.bytes.data(), place);
  EXPECT_EQ(pool.held_bytes(), 2000);
  another.reset();
  PushMemory third = pool.Acquire(1000).value();
  EXPECT_EQ(third.bytes.data(), place);
  EXPECT_EQ(pool.held_bytes(), 2000);
  EXPECT_TRUE(pool.TakeWaits().empty());
}

TEST_F(PushBuffersTest, SizesDoNotMix) {
  PushBuffers pool = Pool(10000);
  { PushMemory large = pool.Acquire(1000).value(); }
  PushMemory small = pool.Acquire(10).value();
  EXPECT_EQ(small.bytes.size(), 10u);
  EXPECT_EQ(pool.held_bytes(), 1010);
}

TEST_F(PushBuffersTest, FreeBuffersOfOtherSizesMakeRoom) {
  PushBuffers pool = Pool(2000);
  PushMemory used = pool.Acquire(500).value();
  { PushMemory free = pool.Acquire(1000).value(); }
  EXPECT_EQ(pool.held_bytes(), 1500);
  PushMemory other = pool.Acquire(600).value();
  EXPECT_EQ(pool.held_bytes(), 1100);
}

TEST_F(PushBuffersTest, WhatHasNoRoomWaitsUntilSomeIsLetGo) {
  PushBuffers pool = Pool(2000);
  PushMemory first = pool.Acquire(1000).value();
  PushMemory second = pool.Acquire(1000).value();
  std::future<PushMemory> third = AcquireLater(pool, 1000);
  EXPECT_TRUE(Waits(third));
  EXPECT_EQ(pool.held_bytes(), 2000);
  second = {};
  EXPECT_EQ(third.get().bytes.size(), 1000u);
  EXPECT_EQ(pool.held_bytes(), 2000);
  const std::vector<TimeSpan> waits = pool.TakeWaits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_GE(waits[0].end - waits[0].begin, std::chrono::milliseconds(60));
  EXPECT_TRUE(pool.TakeWaits().empty());
}

TEST_F(PushBuffersTest, WhatIsLargerThanAllRoomIsUnderWayAlone) {
  PushBuffers pool = Pool(1000);
  PushMemory small = pool.Acquire(10).value();
  std::future<PushMemory> large = AcquireLater(pool, 5000);
  EXPECT_TRUE(Waits(large));
  small = {};
  PushMemory got = large.get();
  EXPECT_EQ(got.bytes.size(), 5000u);
  std::future<PushMemory> next = AcquireLater(pool, 10);
  EXPECT_TRUE(Waits(next));
  got = {};
  next.get();
}

TEST_F(PushBuffersTest, WhoIsAwaitedDoesNotWaitAndGivesBackWhatWasTooMuch) {
  PushBuffers pool = Pool(1000);
  PushMemory first = pool.Acquire(1000).value();
  std::future<PushMemory> waiting = AcquireLater(pool, 1000);
  EXPECT_TRUE(Waits(waiting));
  is_awaited_ = true;
  PushMemory second = waiting.get();
  PushMemory third = pool.Acquire(1000).value();
  EXPECT_EQ(pool.held_bytes(), 3000);
  third = {};
  second = {};
  first = {};
  EXPECT_EQ(pool.held_bytes(), 1000);
}

TEST_F(PushBuffersTest, OnlyTheLastPassOfAStepWaits) {
  PushBuffers pool = Pool(1000);
  pool.BeginPass(/*is_bounded=*/false);
  std::vector<PushMemory> of_first_pass;
  for (int i = 0; i < 3; ++i) of_first_pass.push_back(pool.Acquire(1000).value());
  EXPECT_EQ(pool.held_bytes(), 3000);
  // What these wait for may be this pass's: they are not counted.
  pool.BeginPass(/*is_bounded=*/true);
  PushMemory first = pool.Acquire(1000).value();
  std::future<PushMemory> second = AcquireLater(pool, 1000);
  EXPECT_TRUE(Waits(second));
  of_first_pass.clear();
  EXPECT_TRUE(Waits(second));
  first = {};
  second.get();
}

TEST_F(PushBuffersTest, TheTransportsMemoryComesFirstAndIsWaitedFor) {
  PushBuffers pool = Pool(2000);
  transport_.HaveMemory(1500);
  PushMemory first = pool.Acquire(1000).value();
  EXPECT_EQ(transport_.left_bytes(), 500);
  EXPECT_EQ(pool.held_bytes(), 0);
  std::future<PushMemory> second = AcquireLater(pool, 1000);  // would fit beside the first, elsewhere
  EXPECT_TRUE(Waits(second));
  first = {};
  EXPECT_EQ(second.get().bytes.size(), 1000u);
  EXPECT_EQ(pool.held_bytes(), 0);
  EXPECT_EQ(transport_.left_bytes(), 1500);
}

TEST_F(PushBuffersTest, WhatTheTransportHasNoMemoryForLiesElsewhere) {
  PushBuffers pool = Pool(2000);
  transport_.HaveMemory(1500);
  pool.BeginPass(/*is_bounded=*/true);
  PushMemory of_another_pass = pool.Acquire(1000).value();
  pool.BeginPass(/*is_bounded=*/true);
  PushMemory first = pool.Acquire(1000).value();
  PushMemory second = pool.Acquire(1000).value();
  EXPECT_EQ(pool.held_bytes(), 2000);
  EXPECT_EQ(transport_.left_bytes(), 500);
}

TEST_F(PushBuffersTest, ABufferOutlivesThePool) {
  auto pool = std::make_unique<PushBuffers>(Pool(16));
  PushMemory buffer = pool->Acquire(16).value();
  pool.reset();
  std::memset(buffer.bytes.data(), 1, buffer.bytes.size());
  buffer = {};
}

TEST_F(PushBuffersTest, WhatTheHostDoesNotHaveIsRefusedAndNotCounted) {
  PushBuffers pool = Pool(1000);
  device_->none_left = true;
  EXPECT_THAT(pool.Acquire(1000), StatusIs(absl::StatusCode::kResourceExhausted, "none left"));
  EXPECT_EQ(pool.held_bytes(), 0);
  device_->none_left = false;
  EXPECT_OK(pool.Acquire(1000));
  EXPECT_OK(pool.Acquire(1000));  // nothing is under way
  EXPECT_EQ(pool.held_bytes(), 1000);
}

}  // namespace
}  // namespace eps::worker
