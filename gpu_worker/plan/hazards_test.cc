#include "gpu_worker/plan/hazards.h"

#include <vector>

#include "gtest/gtest.h"

namespace eps::worker {
namespace {

constexpr StreamId kCompute = StreamId::kCompute, kIn = StreamId::kIn, kOut = StreamId::kOut;
const Resource kA = {ResourceKind::kBoundary, 0};
const Resource kB = {ResourceKind::kBoundary, 1};
using Waits = std::vector<int>;

TEST(HazardTrackerTest, AReaderWaitsForTheLastWriterOfAnotherStream) {
  HazardTracker tracker;
  EXPECT_EQ(tracker.Add(kIn, {}, {kA}), Waits());
  EXPECT_EQ(tracker.Add(kCompute, {kA}, {}), Waits({0}));
  EXPECT_EQ(tracker.Add(kOut, {kB}, {}), Waits());
}

TEST(HazardTrackerTest, AWriterWaitsForEveryReaderSinceTheLastWrite) {
  HazardTracker tracker;
  tracker.Add(kIn, {}, {kA});
  tracker.Add(kCompute, {kA}, {});
  tracker.Add(kOut, {kA}, {});
  EXPECT_EQ(tracker.Add(kIn, {}, {kA}), Waits({1, 2}));
  EXPECT_EQ(tracker.Add(kIn, {}, {kA}), Waits());
}

TEST(HazardTrackerTest, StepsOfOneStreamNeverWaitForEachOther) {
  HazardTracker tracker;
  tracker.Add(kCompute, {}, {kA});
  EXPECT_EQ(tracker.Add(kCompute, {kA}, {kA}), Waits());
}

TEST(HazardTrackerTest, WhatAnEarlierWaitImpliesIsNotWaitedForAgain) {
  HazardTracker tracker;
  tracker.Add(kIn, {}, {kA});                              // 0
  tracker.Add(kCompute, {kA}, {kB});                       // 1 after 0
  EXPECT_EQ(tracker.Add(kOut, {kA, kB}, {}), Waits({1}));  // 0 is done when 1 is
  EXPECT_EQ(tracker.Add(kOut, {kA}, {}), Waits());
}

TEST(HazardTrackerTest, ALaterStepOfAnAwaitedStreamIsNotTakenForDone) {
  HazardTracker tracker;
  tracker.Add(kIn, {}, {kA});       // 0
  tracker.Add(kCompute, {kA}, {});  // 1 after 0
  tracker.Add(kIn, {}, {kB});       // 2
  EXPECT_EQ(tracker.Add(kCompute, {kB}, {}), Waits({2}));
}

}  // namespace
}  // namespace eps::worker
