#include "gpu_worker/relay/push_buffers.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
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

class PushBuffersTest : public ::testing::Test {
 protected:
  const std::unique_ptr<PoorDevice> device_ = std::make_unique<PoorDevice>();
};

TEST_F(PushBuffersTest, ABufferComesBackWhenItsLastOwnerLetsGo) {
  PushBuffers pool(device_.get(), 10000);
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
}

TEST_F(PushBuffersTest, SizesDoNotMix) {
  PushBuffers pool(device_.get(), 10000);
  { PushMemory large = pool.Acquire(1000).value(); }
  PushMemory small = pool.Acquire(10).value();
  EXPECT_EQ(small.bytes.size(), 10u);
  EXPECT_EQ(pool.held_bytes(), 1010);
}

TEST_F(PushBuffersTest, FreeBuffersOfOtherSizesMakeRoom) {
  PushBuffers pool(device_.get(), 2000);
  PushMemory used = pool.Acquire(500).value();
  { PushMemory free = pool.Acquire(1000).value(); }
  EXPECT_EQ(pool.held_bytes(), 1500);
  PushMemory other = pool.Acquire(600).value();
  EXPECT_EQ(pool.held_bytes(), 1100);
  PushMemory more = pool.Acquire(1500).value();  // what is in use is never refused
  EXPECT_EQ(pool.held_bytes(), 2600);
}

TEST_F(PushBuffersTest, ABufferOutlivesThePool) {
  auto pool = std::make_unique<PushBuffers>(device_.get(), 16);
  PushMemory buffer = pool->Acquire(16).value();
  pool.reset();
  std::memset(buffer.bytes.data(), 1, buffer.bytes.size());
  buffer = {};
}

TEST_F(PushBuffersTest, WhatTheHostDoesNotHaveIsRefusedAndNotCounted) {
  PushBuffers pool(device_.get(), 1000);
  device_->none_left = true;
  EXPECT_THAT(pool.Acquire(1000), StatusIs(absl::StatusCode::kResourceExhausted, "none left"));
  EXPECT_EQ(pool.held_bytes(), 0);
  device_->none_left = false;
  EXPECT_OK(pool.Acquire(1000));
  EXPECT_EQ(pool.held_bytes(), 1000);
}

}  // namespace
}  // namespace eps::worker
