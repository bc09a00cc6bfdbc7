#include "gpu_worker/device/cuda/host_pins.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

using ::testing::ElementsAre;

constexpr HostAccess kRead = HostAccess::kRead;
constexpr int64_t kPage = HostPins::kPageBytes;

constexpr int64_t kMappedBytes = 5 * HostPins::kPieceBytes / 2;

// Over memory that is only promised: pinning it for the emulated runtime touches none.
class HostPinsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    void* mapped =
        mmap(nullptr, kMappedBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ASSERT_NE(mapped, MAP_FAILED);
    memory_ = static_cast<std::byte*>(mapped);
  }
  void TearDown() override { munmap(memory_, kMappedBytes); }

  absl::Span<const std::byte> At(int64_t start, int64_t num_bytes) const {
    return absl::MakeConstSpan(memory_ + start, static_cast<size_t>(num_bytes));
  }
  std::vector<int64_t> Lengths(const HostPins& pins, int64_t start, int64_t num_bytes) const {
    std::vector<int64_t> lengths;
    const std::byte* at = At(start, 0).data();
    for (const absl::Span<const std::byte> part : pins.Parts(At(start, num_bytes))) {
      EXPECT_EQ(part.data(), at);
      at += part.size();
      lengths.push_back(static_cast<int64_t>(part.size()));
    }
    return lengths;
  }

  std::byte* memory_ = nullptr;
};

// The emulated runtime refuses pages that overlap what is registered, and ends the program when one is left at its end.
TEST_F(HostPinsTest, EveryPageIsPinnedOnce) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward));
  EXPECT_OK(pins.Pin(At(100, 50), kRead));
  EXPECT_EQ(pins.pinned_bytes(), kPage);
  EXPECT_OK(pins.Pin(At(10, 3 * kPage), kRead));  // the first page again, and three more
  EXPECT_EQ(pins.pinned_bytes(), 4 * kPage);
  EXPECT_OK(pins.Pin(At(10 * kPage, kPage), kRead));
  EXPECT_OK(pins.Pin(At(0, 20 * kPage), kRead));  // around both
  EXPECT_EQ(pins.pinned_bytes(), 20 * kPage);
  EXPECT_OK(pins.Pin(At(0, 20 * kPage), kRead));
  EXPECT_OK(pins.Pin(At(5, 0), kRead));
  EXPECT_EQ(pins.pinned_bytes(), 20 * kPage);
}

// Whether the system may write there for us; a store of our own would end the test.
bool IsWritable(std::byte* at) {
  const int zeros = open("/dev/zero", O_RDONLY | O_CLOEXEC);
  const bool written = read(zeros, at, 1) == 1;
  close(zeros);
  return written;
}

TEST_F(HostPinsTest, PagesThatAreReadAreLeftForReadingAlone) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward));
  EXPECT_OK(pins.Pin(At(0, kPage), kRead));
  EXPECT_OK(pins.Pin(At(kPage, kPage), HostAccess::kReadWrite));
  EXPECT_FALSE(IsWritable(memory_));
  EXPECT_TRUE(IsWritable(memory_ + kPage));
  EXPECT_TRUE(IsWritable(memory_ + 2 * kPage));
  // What could not be written from the start cannot be pinned, and is left as it is.
  ASSERT_EQ(mprotect(memory_ + 2 * kPage, kPage, PROT_READ), 0);
  EXPECT_FALSE(pins.Pin(At(2 * kPage, kPage), kRead).ok());
  EXPECT_EQ(pins.pinned_bytes(), 2 * kPage);
}

TEST_F(HostPinsTest, ALargeRangeIsPinnedInPieces) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward));
  EXPECT_OK(pins.Pin(At(0, kMappedBytes), kRead));
  EXPECT_EQ(pins.pinned_bytes(), kMappedBytes);
}

TEST_F(HostPinsTest, WhatIsRefusedLeavesTheOtherPieces) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward, {.most_pinned_bytes = 2 * HostPins::kPieceBytes - kPage}));
  EXPECT_THAT(pins.Pin(At(0, kMappedBytes), kRead), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(pins.pinned_bytes(), kMappedBytes - HostPins::kPieceBytes) << "the first, and the half one behind";
  EXPECT_EQ(pins.loose_bytes(At(0, kMappedBytes)), HostPins::kPieceBytes);
  EXPECT_EQ(pins.loose_bytes(At(HostPins::kPieceBytes - 10, 30)), 20);
  EXPECT_THAT(Lengths(pins, 5, kMappedBytes - 5),
              ElementsAre(HostPins::kPieceBytes - 5, HostPins::kPieceBytes, HostPins::kPieceBytes / 2));
}

TEST_F(HostPinsTest, WhatIsRefusedIsTriedOnceMore) {
  const std::shared_ptr<GpuRuntime> runtime = NewEmulatedRuntime(GridOrder::kForward, {.most_pinned_bytes = 4 * kPage});
  HostPins pins(runtime);
  ASSERT_OK_AND_ASSIGN(void* held, runtime->AllocateHost(2 * kPage));
  EXPECT_FALSE(pins.Pin(At(0, 3 * kPage), kRead).ok());
  runtime->FreeHost(held);
  EXPECT_OK(pins.Pin(At(kPage, 1), kRead)) << "the shortage is over";
  EXPECT_EQ(pins.pinned_bytes(), 3 * kPage);
}

TEST_F(HostPinsTest, MemoryThatIsLetGoOfIsForgotten) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward, {.most_pinned_bytes = 5 * kPage}));
  EXPECT_OK(pins.Pin(At(0, kPage), kRead));
  EXPECT_OK(pins.Pin(At(kPage, 3 * kPage), HostAccess::kReadWrite));
  pins.Unpin(At(kPage, 3 * kPage));
  EXPECT_EQ(pins.pinned_bytes(), kPage);
  EXPECT_OK(pins.Pin(At(2 * kPage, 4 * kPage), HostAccess::kReadWrite));
  pins.LetGo();
  EXPECT_EQ(pins.pinned_bytes(), 0);
}

TEST_F(HostPinsTest, WhatCannotBePinnedIsSaidTwiceAndLeft) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward, {.most_pinned_bytes = 3 * kPage}));
  EXPECT_OK(pins.Pin(At(0, 2 * kPage), kRead));
  EXPECT_THAT(pins.Pin(At(0, 6 * kPage), kRead), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(pins.Pin(At(0, 6 * kPage), kRead), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(pins.Pin(At(0, 6 * kPage), kRead)) << "it asked a third time";
  EXPECT_EQ(pins.pinned_bytes(), 2 * kPage);
  EXPECT_OK(pins.Pin(At(9 * kPage, 1), kRead));
  EXPECT_EQ(pins.pinned_bytes(), 3 * kPage);
}

TEST_F(HostPinsTest, ACopyIsCutWhereRegistrationsBeginAndEnd) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward, {.most_pinned_bytes = 4 * kPage}));
  EXPECT_THAT(Lengths(pins, 100, 50), ElementsAre(50));
  EXPECT_OK(pins.Pin(At(2 * kPage, kPage), kRead));
  EXPECT_OK(pins.Pin(At(3 * kPage, 2 * kPage), kRead));  // the neighbour: another registration
  EXPECT_THAT(Lengths(pins, 2 * kPage + 5, 10), ElementsAre(10));
  EXPECT_THAT(Lengths(pins, 5, 6 * kPage), ElementsAre(2 * kPage - 5, kPage, 2 * kPage, kPage + 5));
  EXPECT_FALSE(pins.Pin(At(5 * kPage, 2 * kPage), kRead).ok());
  // What was refused is as what was never asked for.
  EXPECT_THAT(Lengths(pins, 4 * kPage, 9 * kPage), ElementsAre(kPage, 8 * kPage));
  EXPECT_THAT(Lengths(pins, kPage, 0), ElementsAre());
}

// Every thread finds what it asked for settled, whoever pinned it.
TEST_F(HostPinsTest, ThreadsMayPinTheSamePages) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int64_t page = 0; page < 200; page += 1 + t) {
        EXPECT_OK(pins.Pin(At(page * kPage, 3 * kPage), kRead));
        EXPECT_GE(pins.pinned_bytes(), 3 * kPage);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pins.pinned_bytes(), 202 * kPage);
}

}  // namespace
}  // namespace eps::worker::cuda
