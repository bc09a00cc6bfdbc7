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
#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

// A device on a host that has no memory left, as long as `none_left` is set. Keeps what it was asked for.
class PoorDevice : public Device {
 public:
  const DeviceProperties& properties() const override { return device_->properties(); }
  int64_t arena_bytes() const override { return device_->arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override { return device_->Address(span); }
  int64_t arena_high_water_bytes() const override { return device_->arena_high_water_bytes(); }
  int64_t outside_bytes() const override { return device_->outside_bytes(); }
  absl::StatusOr<HostMemory> NewHostMemory(int64_t num_bytes) override {
    if (none_left) return absl::ResourceExhaustedError("none left");
    asked_for.push_back(num_bytes);
    absl::StatusOr<HostMemory> memory = device_->NewHostMemory(num_bytes);
    if (memory.ok()) newest_block = memory->owner;
    return memory;
  }
  Stream& stream(StreamId id) override { return device_->stream(id); }
  std::unique_ptr<Event> NewEvent() override { return device_->NewEvent(); }
  Kernels& kernels() override { return device_->kernels(); }
  void Recover() override { device_->Recover(); }

  bool none_left = false;
  std::vector<int64_t> asked_for;  // bytes
  std::weak_ptr<void> newest_block;

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
           ++asked_;
           return is_awaited_.load();
         }});
  }
  static PushMemory Acquire(PushBuffers& pool, int64_t num_bytes) {
    PushMemory memory = pool.Acquire(num_bytes, /*may_wait=*/true).value();
    EXPECT_EQ(static_cast<int64_t>(memory.bytes.size()), num_bytes);
    return memory;
  }
  // In a thread of its own, as it waits.
  static std::future<PushMemory> AcquireLater(PushBuffers& pool, int64_t num_bytes) {
    return std::async(std::launch::async, [&pool, num_bytes] { return Acquire(pool, num_bytes); });
  }
  // It has looked for room in vain, and waits; not: it has got some.
  bool Waits(const std::future<PushMemory>& acquired) {
    const int asked_before = asked_;
    while (asked_ < asked_before + 2) {
      if (acquired.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready) return false;
    }
    return true;
  }

  const std::unique_ptr<PoorDevice> device_ = std::make_unique<PoorDevice>();
  RichTransport transport_;
  std::atomic<bool> is_awaited_ = false;
  std::atomic<int> asked_ = 0;  // whether it is awaited
};

TEST_F(PushBuffersTest, APlaceComesBackWhenItsLastOwnerLetsGo) {
  PushBuffers pool = Pool(2048);
  PushMemory first = Acquire(pool, 1000);
  std::byte* const place = first.bytes.data();
  std::shared_ptr<void> another = first.owner;
  first = {};
  PushMemory second = Acquire(pool, 1000);
  EXPECT_NE(second.bytes.data(), place);
  another.reset();
  PushMemory third = Acquire(pool, 1000);
  EXPECT_EQ(third.bytes.data(), place);
  EXPECT_TRUE(pool.TakeWaits().empty());
}

TEST_F(PushBuffersTest, WhateverTheSizesTheDeviceIsAskedOnce) {
  PushBuffers pool = Pool(2048);
  for (const int64_t num_bytes : {1000, 10, 2048, 500}) Acquire(pool, num_bytes);
  EXPECT_EQ(device_->asked_for, std::vector<int64_t>{2048});
}

TEST_F(PushBuffersTest, WhatHasNoRoomWaitsUntilSomeIsLetGo) {
  PushBuffers pool = Pool(2048);
  PushMemory first = Acquire(pool, 1000);
  PushMemory second = Acquire(pool, 1000);
  std::future<PushMemory> third = AcquireLater(pool, 1000);
  EXPECT_TRUE(Waits(third));
  const auto let_go_at = std::chrono::steady_clock::now();
  second = {};
  third.get();
  EXPECT_EQ(device_->asked_for, std::vector<int64_t>{2048});
  const std::vector<TimeSpan> waits = pool.TakeWaits();
  ASSERT_EQ(waits.size(), 1u);
  EXPECT_LT(waits[0].begin, let_go_at);
  EXPECT_GE(waits[0].end, let_go_at);
  EXPECT_TRUE(pool.TakeWaits().empty());
}

TEST_F(PushBuffersTest, WhatIsLargerThanAllRoomIsUnderWayAlone) {
  PushBuffers pool = Pool(1024);
  PushMemory small = Acquire(pool, 10);
  std::future<PushMemory> large = AcquireLater(pool, 5000);
  EXPECT_TRUE(Waits(large));
  small = {};
  large.get();
}

TEST_F(PushBuffersTest, WhatMayNotWaitGetsMemoryOfItsOwn) {
  PushBuffers pool = Pool(1024);
  PushMemory first = Acquire(pool, 1000);
  PushMemory second = pool.Acquire(1000, /*may_wait=*/false).value();
  EXPECT_EQ(device_->asked_for, (std::vector<int64_t>{1024, 1000}));
  EXPECT_TRUE(pool.TakeWaits().empty());
}

TEST_F(PushBuffersTest, WhoIsAwaitedWaitsNoLonger) {
  PushBuffers pool = Pool(1024);
  PushMemory first = Acquire(pool, 1000);
  std::future<PushMemory> waiting = AcquireLater(pool, 1000);
  EXPECT_TRUE(Waits(waiting));
  is_awaited_ = true;
  PushMemory second = waiting.get();
  PushMemory third = Acquire(pool, 1000);
  EXPECT_EQ(device_->asked_for, (std::vector<int64_t>{1024, 1000, 1000}));
}

TEST_F(PushBuffersTest, OnlyTheLastPassOfAnOrderWaits) {
  PushBuffers pool = Pool(1024);
  pool.BeginPass(/*is_last=*/false);
  std::vector<PushMemory> of_first_pass;
  for (int i = 0; i < 3; ++i) of_first_pass.push_back(Acquire(pool, 1000));
  // What those wait for may be what this pass makes: they are not counted.
  pool.BeginPass(/*is_last=*/true);
  PushMemory first = Acquire(pool, 1000);
  std::future<PushMemory> second = AcquireLater(pool, 1000);
  EXPECT_TRUE(Waits(second));
  first = {};  // of its own, while the block is the first pass's
  second.get();
}

TEST_F(PushBuffersTest, TheTransportsMemoryIsTakenAndWaitedFor) {
  PushBuffers pool = Pool(2048);
  transport_.HaveMemory(1500);
  PushMemory first = Acquire(pool, 1000);
  EXPECT_EQ(transport_.left_bytes(), 500);
  std::future<PushMemory> second = AcquireLater(pool, 1000);
  EXPECT_TRUE(Waits(second));
  first = {};
  PushMemory got = second.get();
  EXPECT_EQ(transport_.left_bytes(), 500);
  EXPECT_TRUE(device_->asked_for.empty());
}

TEST_F(PushBuffersTest, APlaceOutlivesThePool) {
  auto pool = std::make_unique<PushBuffers>(Pool(16));
  PushMemory memory = Acquire(*pool, 16);
  std::memset(memory.bytes.data(), 1, memory.bytes.size());
  pool.reset();
  std::shared_ptr<void> copy = std::move(memory.owner);
  EXPECT_FALSE(device_->newest_block.expired());
  EXPECT_THAT(memory.bytes, ::testing::Each(std::byte{1}));
  copy.reset();
  EXPECT_TRUE(device_->newest_block.expired());
}

TEST_F(PushBuffersTest, WhatTheHostDoesNotHaveIsRefusedAndNotCounted) {
  PushBuffers pool = Pool(1024);
  device_->none_left = true;
  EXPECT_THAT(pool.Acquire(1000, /*may_wait=*/true), StatusIs(absl::StatusCode::kResourceExhausted, "none left"));
  device_->none_left = false;
  Acquire(pool, 1000);
  EXPECT_EQ(device_->asked_for, std::vector<int64_t>{1024});
}

}  // namespace
}  // namespace eps::worker
