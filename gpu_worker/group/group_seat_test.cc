#include "gpu_worker/group/group_seat.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/group/shared_memory_group.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using absl::StatusCode;

// What a seat says, as text, in order.
class Said {
 public:
  GroupSeat::Reports reports() {
    return {.founded =
                [this](uint64_t group, const std::string& token) {
                  MutexLock lock(mu_);
                  token_ = token;
                  Add("founded " + std::to_string(group));
                },
            .joined =
                [this](uint64_t group) {
                  MutexLock lock(mu_);
                  Add("joined " + std::to_string(group));
                },
            .failed =
                [this](uint64_t group, const absl::Status& why) {
                  MutexLock lock(mu_);
                  Add("failed " + std::to_string(group) + ": " + std::string(why.message()));
                }};
  }
  // Waits until it was said.
  void Wait(const std::string& text) {
    MutexLock lock(mu_);
    while (!Has(text)) changed_.Wait(mu_);
  }
  std::string token() {
    MutexLock lock(mu_);
    return token_;
  }

 private:
  void Add(std::string text) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    texts_.push_back(std::move(text));
    changed_.NotifyAll();
  }
  bool Has(const std::string& text) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (const std::string& said : texts_) {
      if (said.substr(0, text.size()) == text) return true;
    }
    return false;
  }

  Mutex mu_;
  CondVar changed_;
  std::vector<std::string> texts_ ABSL_GUARDED_BY(mu_);
  std::string token_ ABSL_GUARDED_BY(mu_);
};

std::unique_ptr<Device> NewDevice() { return NewCpuDevice({.arena_bytes = 4096, .threads = 1}).value(); }

TEST(GroupSeatTest, OneFoundsAndTheOtherJoins) {
  const std::unique_ptr<Device> device = NewDevice();
  Said first_said, second_said;
  GroupSeat first(NewSharedMemoryGroupMaker(), first_said.reports());
  GroupSeat second(NewSharedMemoryGroupMaker(), second_said.reports());
  EXPECT_EQ(first.kind(), "shared_memory");
  first.Take(*device, 7, 0, 2, "");
  first_said.Wait("founded 7");
  second.Take(*device, 7, 1, 2, first_said.token());
  first_said.Wait("joined 7");
  second_said.Wait("joined 7");
  EXPECT_NE(first.Find(7), nullptr);
  EXPECT_EQ(first.Find(8), nullptr);
  first.End(8, absl::AbortedError("of another"));
  EXPECT_OK(first.Find(7)->status());
  first.End(7, absl::AbortedError("a worker was lost"));
  EXPECT_THAT(first.Find(7)->status(), StatusIs(StatusCode::kAborted, "a worker was lost"));
}

TEST(GroupSeatTest, ANewGroupTakesThePlaceOfTheOneBefore) {
  const std::unique_ptr<Device> device = NewDevice();
  Said said;
  GroupSeat seat(NewSharedMemoryGroupMaker(), said.reports());
  seat.Take(*device, 7, 0, 2, "");
  seat.Take(*device, 8, 0, 3, "");
  said.Wait("failed 7: the group has ended");
  EXPECT_EQ(seat.Find(7), nullptr);
  ASSERT_NE(seat.Find(8), nullptr);
  EXPECT_EQ(seat.Find(8)->size(), 3);
  seat.EndAny(absl::UnavailableError("the daemon is gone"));
  EXPECT_THAT(seat.Find(8)->status(), StatusIs(StatusCode::kAborted, "the daemon is gone"));
  seat.Leave();
  EXPECT_EQ(seat.Find(8), nullptr);
}

// Members join, and are lost, while one of them has not even returned from its maker.
TEST(GroupSeatTest, AnEndThatComesWhileTheGroupIsMadeIsNotLost) {
  class Midway : public GroupMaker {
   public:
    std::string kind() const override { return maker_->kind(); }
    absl::StatusOr<std::unique_ptr<Group>> Found(GroupOptions options, std::string& token) override {
      auto group = maker_->Found(std::move(options), token);
      midway();
      return group;
    }
    absl::StatusOr<std::unique_ptr<Group>> Join(GroupOptions options, absl::string_view token) override {
      auto group = maker_->Join(std::move(options), token);
      midway();
      return group;
    }
    std::function<void()> midway = [] {};

   private:
    const std::unique_ptr<GroupMaker> maker_ = NewSharedMemoryGroupMaker();
  };
  const std::unique_ptr<Device> device = NewDevice();
  Said said;
  auto made = std::make_unique<Midway>();
  Midway& maker = *made;
  GroupSeat seat(std::move(made), said.reports());

  maker.midway = [&] {
    seat.End(6, absl::AbortedError("of another"));
    seat.End(7, absl::AbortedError("a worker was lost"));
    EXPECT_EQ(seat.Find(7), nullptr);
  };
  seat.Take(*device, 7, 0, 2, "");
  ASSERT_NE(seat.Find(7), nullptr);
  EXPECT_THAT(seat.Find(7)->status(), StatusIs(StatusCode::kAborted, "the group has ended: a worker was lost"));
  maker.midway = [&] { seat.EndAny(absl::UnavailableError("the daemon is gone")); };
  seat.Take(*device, 8, 0, 2, "");
  EXPECT_THAT(seat.Find(8)->status(), StatusIs(StatusCode::kAborted, "the group has ended: the daemon is gone"));
  seat.Take(*device, 9, 5, 2, "");  // which cannot be made
  EXPECT_EQ(seat.Find(9), nullptr);
  maker.midway = [] {};
  seat.Take(*device, 9, 0, 2, "");
  EXPECT_OK(seat.Find(9)->status());
}

TEST(GroupSeatTest, WhatCannotBeFormedIsReported) {
  const std::unique_ptr<Device> device = NewDevice();
  Said said;
  GroupSeat none(nullptr, said.reports());
  EXPECT_EQ(none.kind(), "");
  none.Take(*device, 7, 0, 2, "");
  said.Wait("failed 7: this worker forms no groups");
  GroupSeat seat(NewSharedMemoryGroupMaker(), said.reports());
  seat.Take(*device, 8, 5, 2, "");
  said.Wait("failed 8: group: rank: 5");
  EXPECT_EQ(seat.Find(8), nullptr);
}

}  // namespace
}  // namespace eps::worker
