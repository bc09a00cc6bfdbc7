#include "common/base/long_work.h"

#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(LongWorkTest, BeforeAnythingWasBegunThereIsNothing) {
  const LongWork work;
  EXPECT_EQ(work.Look().what, "");
  EXPECT_EQ(work.Look().seconds, 0);
  EXPECT_EQ(ToText(work.Look()), "nothing yet");
}

TEST(LongWorkTest, SaysWhatIsDoneAndHowFarItIs) {
  LongWork work;
  work.Begin("reading the checkpoint", 4 << 20);
  EXPECT_OK(work.Add(1 << 20));
  EXPECT_OK(work.Add(2 << 20));
  const LongWork::View view = work.Look();
  EXPECT_EQ(view.done_bytes, 3 << 20);
  EXPECT_GE(view.seconds, 0);
  EXPECT_EQ(ToText(view), "reading the checkpoint, 3.0 MiB of 4.0 MiB");
}

TEST(LongWorkTest, TheNextBeginsAnewAndMayNotKnowItsLength) {
  LongWork work;
  work.Begin("reading", 100);
  EXPECT_OK(work.Add(100));
  work.Begin("tokenizing a.txt");
  EXPECT_EQ(ToText(work.Look()), "tokenizing a.txt");
  EXPECT_OK(work.Reach(1 << 10, 2 << 10));
  EXPECT_EQ(ToText(work.Look()), "tokenizing a.txt, 1.0 KiB of 2.0 KiB");
}

TEST(LongWorkTest, ThreadsThatShareTheWorkCountTogether) {
  LongWork work;
  work.Begin("loading weights", 8000);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&work] {
      for (int j = 0; j < 1000; ++j) EXPECT_OK(work.Add(1));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(work.Look().done_bytes, 8000);
}

TEST(LongWorkTest, WhatIsGivenUpIsToldSoWhereverItIs) {
  LongWork work;
  EXPECT_OK(AddTo(nullptr, 1));
  work.Begin("reading", 100);
  EXPECT_OK(AddTo(&work, 1));
  work.Cancel();
  EXPECT_THAT(work.Add(1), StatusIs(absl::StatusCode::kCancelled, "reading"));
  work.Begin("making the initial weights");
  EXPECT_THAT(work.Reach(1, 2), StatusIs(absl::StatusCode::kCancelled, "making the initial weights"));
}

}  // namespace
}  // namespace eps
