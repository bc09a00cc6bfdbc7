#include "gpu_worker/device/cuda/host_pins.h"

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

constexpr int64_t kPage = HostPins::kPageBytes;

// Addresses that nothing is at: pinning reads nothing.
absl::Span<const std::byte> At(int64_t start, int64_t num_bytes) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>((int64_t{1} << 40) + start),
                             static_cast<size_t>(num_bytes));
}

// The emulated runtime refuses pages that overlap what is registered, and ends the program when one is left at its end.
TEST(HostPinsTest, EveryPageIsPinnedOnce) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward));
  EXPECT_OK(pins.Pin(At(100, 50)));
  EXPECT_EQ(pins.pinned_bytes(), kPage);
  EXPECT_OK(pins.Pin(At(10, 3 * kPage)));  // the first page again, and three more
  EXPECT_EQ(pins.pinned_bytes(), 4 * kPage);
  EXPECT_OK(pins.Pin(At(10 * kPage, kPage)));
  EXPECT_OK(pins.Pin(At(0, 20 * kPage)));  // around both
  EXPECT_EQ(pins.pinned_bytes(), 20 * kPage);
  EXPECT_OK(pins.Pin(At(0, 20 * kPage)));
  EXPECT_OK(pins.Pin(At(5, 0)));
  EXPECT_EQ(pins.pinned_bytes(), 20 * kPage);
}

TEST(HostPinsTest, ALargeRangeIsPinnedInPieces) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward));
  EXPECT_OK(pins.Pin(At(0, 5 * HostPins::kPieceBytes / 2)));
  EXPECT_EQ(pins.pinned_bytes(), 5 * HostPins::kPieceBytes / 2);
}

TEST(HostPinsTest, WhatCannotBePinnedIsSaidOnceAndLeft) {
  HostPins pins(NewEmulatedRuntime(GridOrder::kForward, {.most_pinned_bytes = 3 * kPage}));
  EXPECT_OK(pins.Pin(At(0, 2 * kPage)));
  EXPECT_THAT(pins.Pin(At(0, 6 * kPage)), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_OK(pins.Pin(At(0, 6 * kPage))) << "it asked again";
  EXPECT_EQ(pins.pinned_bytes(), 2 * kPage);
  EXPECT_OK(pins.Pin(At(9 * kPage, 1)));
  EXPECT_EQ(pins.pinned_bytes(), 3 * kPage);
}

}  // namespace
}  // namespace eps::worker::cuda
