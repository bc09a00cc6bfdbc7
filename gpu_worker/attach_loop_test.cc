#include "gpu_worker/attach_loop.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/session.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/grpc_control.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A daemon by what it answers, and sessions by how they end, on a clock that only sleep and slow answers move.
class AttachLoopTest : public ::testing::Test {
 protected:
  using Answer = absl::StatusOr<AttachAnswer>;

  absl::Status Run() {
    return RunAttachLoop({.address = "host:1",
                          .reconnect = reconnect_,
                          .attach =
                              [this](absl::Duration timeout) {
                                timeouts_.push_back(timeout);
                                now_ += each_answer_takes_;
                                return answer_(static_cast<int>(timeouts_.size()));
                              },
                          .run_session =
                              [this](Attachment attachment) {
                                sessions_.push_back(attachment.incarnation);
                                SessionEnd end = ends_.front();
                                ends_.pop_front();
                                return end;
                              },
                          .on_lost = [this](bool was_stopped) { ++(was_stopped ? stopped_ : lost_); },
                          .is_to_leave = [this] { return is_to_leave_; },
                          .clock = [this] { return now_; },
                          .sleep = [this](absl::Duration time) { now_ += time; }});
  }

  static Answer LetIn(uint64_t incarnation) {
    Attachment attachment;
    attachment.incarnation = incarnation;
    return AttachAnswer(std::move(attachment));
  }
  static Answer Starting() { return AttachAnswer(StartingDaemon{"reading the checkpoint"}); }

  absl::Duration now_ = absl::Hours(1), each_answer_takes_ = absl::ZeroDuration(), reconnect_ = absl::Seconds(30);
  std::function<Answer(int call)> answer_ = [](int) { return LetIn(7); };  // calls are counted from 1
  std::deque<SessionEnd> ends_ = {{}};
  bool is_to_leave_ = false;
  std::vector<absl::Duration> timeouts_;
  std::vector<uint64_t> sessions_;
  int lost_ = 0, stopped_ = 0;
};

const SessionEnd kLost = {.status = absl::UnavailableError("it is gone"), .link_failed = true, .was_open = true};
const SessionEnd kLostWhileOpening = {.status = absl::NotFoundError("worker_id: 1"), .link_failed = true};

TEST_F(AttachLoopTest, ARunThatIsDoneEndsWell) {
  EXPECT_OK(Run());
  EXPECT_THAT(sessions_, ElementsAre(7u));
  EXPECT_EQ(lost_, 0);
}

TEST_F(AttachLoopTest, ALostDaemonIsLookedForAndFound) {
  answer_ = [](int call) -> Answer {
    if (call == 1) return LetIn(7);
    if (call < 5) return absl::UnavailableError("connection refused");
    return LetIn(8);
  };
  ends_ = {kLost, {}};
  EXPECT_OK(Run());
  EXPECT_THAT(sessions_, ElementsAre(7u, 8u));
  EXPECT_EQ(lost_, 1);
}

TEST_F(AttachLoopTest, OneThatIsNotReachedInTimeIsGivenUpAndTheErrorSaysHowLongItWasLookedFor) {
  answer_ = [](int call) -> Answer {
    if (call == 1) return LetIn(7);
    return absl::UnavailableError("connection refused");
  };
  ends_ = {{.status = absl::NotFoundError("the lease ran out"), .link_failed = true, .was_open = true}};
  const absl::Duration begin = now_;
  EXPECT_THAT(Run(), StatusIs(StatusCode::kUnavailable, "no daemon was reached at host:1 for 30 s: the lease ran out"));
  EXPECT_GE(now_ - begin, absl::Seconds(30));
  EXPECT_LT(now_ - begin, absl::Seconds(31));
}

TEST_F(AttachLoopTest, ASearchIsToldOfEveryThirtySecondsWithTheNewestError) {
  answer_ = [](int call) -> Answer { return absl::UnavailableError(absl::StrCat("try ", call)); };
  reconnect_ = absl::Seconds(100);
  each_answer_takes_ = absl::Seconds(9);
  ::testing::internal::CaptureStderr();
  EXPECT_THAT(Run(), StatusIs(StatusCode::kUnavailable, "try 1"));  // what was met with first
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("worker_waits_for_daemon address=host:1 error=\"UNAVAILABLE: try 1\" seconds_left=91"));
  EXPECT_THAT(log, ::testing::Not(HasSubstr("try 4\"")));
  EXPECT_THAT(log, HasSubstr("error=\"UNAVAILABLE: try 5\""));
}

TEST_F(AttachLoopTest, ASearchAfterALossIsToldOfAsWell) {
  answer_ = [](int call) -> Answer {
    return call == 2 ? Answer(absl::UnavailableError("connection refused")) : LetIn(7);
  };
  ends_ = {kLost, {}};
  ::testing::internal::CaptureStderr();
  EXPECT_OK(Run());
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("worker_lost_daemon error=\"UNAVAILABLE: it is gone\""));
  EXPECT_THAT(log, HasSubstr("worker_waits_for_daemon address=host:1 error=\"UNAVAILABLE: connection refused\""));
}

TEST_F(AttachLoopTest, ADaemonThatStartsIsWaitedForAsLongAsItSaysSo) {
  answer_ = [](int call) { return call < 5000 ? Starting() : LetIn(7); };
  const absl::Duration begin = now_;
  EXPECT_OK(Run());
  EXPECT_GT(now_ - begin, absl::Hours(2));
}

TEST_F(AttachLoopTest, OneThatDiesWhileItStartsIsAwayFromThenOn) {
  answer_ = [](int call) { return call <= 100 ? Starting() : Answer(absl::UnavailableError("connection refused")); };
  const absl::Duration begin = now_;
  EXPECT_THAT(Run(), StatusIs(StatusCode::kUnavailable, "for 30 s: connection refused"));
  EXPECT_GT(now_ - begin, absl::Seconds(100));
}

TEST_F(AttachLoopTest, AttemptsBecomeRarerAndTheLastOneMayWaitASecond) {
  answer_ = [](int) -> Answer { return absl::UnavailableError("connection refused"); };
  EXPECT_FALSE(Run().ok());
  // 0.1 + 0.2 + 0.4 + 0.8 + 1.6 s, then 2 s each.
  EXPECT_EQ(timeouts_.size(), 5u + 14u + 1u);
  EXPECT_EQ(timeouts_.front(), absl::Seconds(30));
  EXPECT_EQ(timeouts_.back(), absl::Seconds(1));
}

TEST_F(AttachLoopTest, WhatCannotHelpIsNotTriedAgain) {
  for (const absl::Status& refusal : {absl::UnauthenticatedError("no token"), absl::PermissionDeniedError("a viewer's"),
                                      absl::FailedPreconditionError("protocol_version"),
                                      absl::UnavailableError("handshake: certificate verify failed")}) {
    timeouts_.clear();
    answer_ = [&](int) -> Answer { return refusal; };
    EXPECT_EQ(Run(), refusal);
    EXPECT_EQ(timeouts_.size(), 1u);
  }
}

TEST_F(AttachLoopTest, WhoWasLetInBeforeWaitsForTheKeysThatTheDaemonCameBackWith) {
  for (const absl::Status& refusal :
       {absl::UnauthenticatedError("no token"), absl::UnavailableError("handshake: certificate verify failed")}) {
    timeouts_.clear();
    sessions_.clear();
    answer_ = [&](int call) -> Answer {
      if (call == 1) return LetIn(7);
      return call < 5 ? Answer(refusal) : LetIn(8);
    };
    ends_ = {kLost, {}};
    EXPECT_OK(Run());
    EXPECT_THAT(sessions_, ElementsAre(7u, 8u));
    // But not for ever.
    timeouts_.clear();
    ends_ = {kLost};
    answer_ = [&](int call) -> Answer { return call == 1 ? LetIn(7) : Answer(refusal); };
    EXPECT_THAT(Run(),
                StatusIs(refusal.code(), absl::StrCat("no daemon let it in at host:1 for 30 s: ", refusal.message())));
  }
  // What no key mends ends it at once.
  timeouts_.clear();
  ends_ = {kLost};
  answer_ = [](int call) -> Answer { return call == 1 ? LetIn(7) : Answer(absl::FailedPreconditionError("over")); };
  EXPECT_THAT(Run(), StatusIs(StatusCode::kFailedPrecondition, "over"));
  EXPECT_EQ(timeouts_.size(), 2u);
}

TEST_F(AttachLoopTest, TheWorkersOwnErrorEndsItWhateverItsCode) {
  for (const bool was_open : {false, true}) {
    sessions_.clear();
    ends_ = {{.status = absl::NotFoundError("socket"), .was_open = was_open}};
    EXPECT_THAT(Run(), StatusIs(StatusCode::kInternal, "socket"));
    EXPECT_THAT(sessions_, ElementsAre(7u));
    EXPECT_EQ(lost_, 0);
  }
}

TEST_F(AttachLoopTest, OnlyASessionThatWasNotOpenSaysThatTheRunDoesNotFit) {
  const absl::Status full = absl::ResourceExhaustedError("needs at least 3 bytes");
  ends_ = {{.status = full}};
  EXPECT_EQ(Run(), full);
  for (const SessionEnd& other :
       {SessionEnd{.status = full, .was_open = true}, {.status = full, .link_failed = true}}) {
    ends_ = {other};
    EXPECT_THAT(Run(), StatusIs(StatusCode::kInternal, "needs at least 3 bytes"));
  }
}

const SessionEnd kStopped = {
    .status = absl::UnavailableError("it was stopped"), .was_open = true, .daemon_was_stopped = true};

TEST_F(AttachLoopTest, ADaemonThatWasStoppedIsLookedForAndIsNoneThatWasLost) {
  ends_ = {kStopped, {}};
  answer_ = [](int call) { return call == 2 ? Answer(absl::UnavailableError("refused")) : LetIn(call == 1 ? 7 : 8); };
  EXPECT_OK(Run());
  EXPECT_THAT(sessions_, ElementsAre(7u, 8u));
  EXPECT_EQ(stopped_, 1);
  EXPECT_EQ(lost_, 0);
}

TEST_F(AttachLoopTest, ADaemonThatWasStoppedAndStaysAwayIsGoneInTheEnd) {
  ends_ = {kStopped};
  answer_ = [](int call) { return call == 1 ? LetIn(7) : Answer(absl::UnavailableError("refused")); };
  EXPECT_THAT(Run(), StatusIs(StatusCode::kUnavailable, "for 30 s: it was stopped"));
}

TEST_F(AttachLoopTest, AWorkerThatIsToLeaveLooksForNoneThatWasStopped) {
  ends_ = {kStopped};
  is_to_leave_ = true;
  EXPECT_OK(Run());
  EXPECT_EQ(stopped_, 0);
}

TEST_F(AttachLoopTest, ALinkThatTheSameCannotHelpEndsIt) {
  ends_ = {{.status = absl::DataLossError("half a chunk"), .link_failed = true, .was_open = true}};
  EXPECT_THAT(Run(), StatusIs(StatusCode::kDataLoss, "half a chunk"));
}

TEST_F(AttachLoopTest, ADaemonThatTwiceLetsItInAndLosesItBeforeItIsOpenIsLeft) {
  ends_ = {kLostWhileOpening, kLostWhileOpening};
  EXPECT_THAT(Run(), StatusIs(StatusCode::kInternal, "worker_id: 1"));
  EXPECT_THAT(sessions_, ElementsAre(7u, 7u));
}

TEST_F(AttachLoopTest, AnotherDaemonOrOneThatItWasOpenWithMeanwhileIsNot) {
  answer_ = [](int call) { return LetIn(call == 1 ? 7 : 8); };
  ends_ = {kLostWhileOpening, kLostWhileOpening, kLostWhileOpening};
  EXPECT_THAT(Run(), StatusIs(StatusCode::kInternal, "worker_id: 1"));
  EXPECT_THAT(sessions_, ElementsAre(7u, 8u, 8u));
  sessions_.clear();
  timeouts_.clear();
  ends_ = {kLostWhileOpening, kLost, kLostWhileOpening, {}};
  EXPECT_OK(Run());
  EXPECT_THAT(sessions_, ElementsAre(7u, 8u, 8u, 8u));
}

TEST_F(AttachLoopTest, OneThatWasAskedToLeaveDoesNotLookForALostDaemon) {
  is_to_leave_ = true;
  ends_ = {kLost};
  EXPECT_OK(Run());
  EXPECT_THAT(sessions_, ElementsAre(7u));
}

}  // namespace
}  // namespace eps::worker
