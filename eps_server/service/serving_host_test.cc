#include "eps_server/service/serving_host.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/step/run_status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;

class FakeChannel final : public EventChannel {
 public:
  struct Request {
    int64_t id;
    std::vector<int32_t> tokens;
  };
  void SendAssignment(std::shared_ptr<const Assignment>) override { FAIL(); }
  void SendGroupOrder(const GroupOrder&) override { FAIL(); }
  void SendFinish(FinishNotice notice) override { finished = notice.ok; }
  void SendInfer(int64_t request_id, std::vector<int32_t> tokens) override {
    requests.push_back({request_id, std::move(tokens)});
  }
  void Close(absl::Status why) override { closed = why; }

  std::vector<Request> requests;
  bool finished = false;
  absl::Status closed;
};

class ServingHostTest : public testing::Test {
 protected:
  ServingHostTest() {
    RunConfig run;
    run.model.vocab = 4;
    run.model.context = 3;
    host_ = std::make_unique<ServingHost>(run, [this] { return now_; });
  }

  std::pair<WorkerId, std::shared_ptr<FakeChannel>> AddWorker() {
    const WorkerId worker =
        host_->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1}).value();
    auto channel = std::make_shared<FakeChannel>();
    EXPECT_OK(host_->Connect(worker, channel));
    EXPECT_OK(host_->Ready(worker, {}));
    return {worker, channel};
  }

  absl::StatusOr<int64_t> Generate(std::vector<int32_t> prompt, int64_t max_tokens) {
    return host_->Generate({.prompt = std::move(prompt), .max_tokens = max_tokens, .sampling = {.temperature = 0}},
                           {.on_token =
                                [this](ServingHost::Drawn drawn) {
                                  tokens_.push_back(drawn.token);
                                  class_logits_ = std::move(drawn.class_logits);
                                },
                            .on_end = [this](absl::Status status) { ends_.push_back(status); }});
  }

  // Logits whose largest is `token`'s.
  static std::vector<float> Likes(int32_t token) {
    std::vector<float> logits(4, 0);
    logits[token] = 1;
    return logits;
  }

  absl::Duration now_;
  std::unique_ptr<ServingHost> host_;
  std::vector<int32_t> tokens_;
  std::vector<float> class_logits_;  // with the last of them
  std::vector<absl::Status> ends_;
};

TEST_F(ServingHostTest, ATextIsWrittenTokenByTokenFromTheLastContextTokens) {
  const auto [worker, channel] = AddWorker();
  ASSERT_OK(Generate({0, 1}, 3));
  for (const int32_t token : {2, 3, 1}) {
    ASSERT_OK(host_->Inferred(worker, channel->requests.back().id, Likes(token)));
  }
  EXPECT_THAT(tokens_, ElementsAre(2, 3, 1));
  EXPECT_THAT(class_logits_, ElementsAre());
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_OK(ends_[0]);
  ASSERT_EQ(channel->requests.size(), 3u);
  EXPECT_THAT(channel->requests[0].tokens, ElementsAre(0, 1));
  EXPECT_THAT(channel->requests[1].tokens, ElementsAre(0, 1, 2));
  EXPECT_THAT(channel->requests[2].tokens, ElementsAre(1, 2, 3));
}

TEST_F(ServingHostTest, ATextWaitsForAWorkerAndMovesToAnotherWhenItsOwnIsLost) {
  ASSERT_OK(Generate({0}, 1));
  const auto [first, first_channel] = AddWorker();
  ASSERT_EQ(first_channel->requests.size(), 1u);
  const auto [second, second_channel] = AddWorker();
  host_->Disconnect(first, absl::UnavailableError("gone"));
  ASSERT_EQ(second_channel->requests.size(), 1u);
  // What the lost one says late is not known any more.
  EXPECT_THAT(host_->Inferred(first, first_channel->requests[0].id, Likes(1)), StatusIs(StatusCode::kNotFound));
  ASSERT_OK(host_->Inferred(second, second_channel->requests[0].id, Likes(2)));
  EXPECT_THAT(tokens_, ElementsAre(2));
}

TEST_F(ServingHostTest, TextsAreSpreadOverTheWorkers) {
  const auto [first, first_channel] = AddWorker();
  const auto [second, second_channel] = AddWorker();
  ASSERT_OK(Generate({0}, 1));
  ASSERT_OK(Generate({1}, 1));
  EXPECT_EQ(first_channel->requests.size(), 1u);
  EXPECT_EQ(second_channel->requests.size(), 1u);
}

TEST_F(ServingHostTest, ACancelledTextSaysNoMore) {
  const auto [worker, channel] = AddWorker();
  ASSERT_OK_AND_ASSIGN(const int64_t text, Generate({0}, 5));
  host_->CancelText(text);
  EXPECT_OK(host_->Inferred(worker, channel->requests[0].id, Likes(1)));
  EXPECT_THAT(tokens_, ElementsAre());
  EXPECT_TRUE(ends_.empty());
}

TEST_F(ServingHostTest, AWorkerThatWantsToLeaveAnswersWhatItWasAskedAndGoes) {
  const auto [worker, channel] = AddWorker();
  ASSERT_OK(Generate({0}, 2));
  EXPECT_OK(host_->Leave(worker));
  EXPECT_FALSE(channel->finished);
  EXPECT_EQ(host_->Workers().front().state, WorkerState::kLeaving);
  EXPECT_OK(host_->Inferred(worker, channel->requests[0].id, Likes(1)));
  EXPECT_TRUE(channel->finished);
  EXPECT_EQ(channel->requests.size(), 1u) << "the text's next token is another's";
  EXPECT_TRUE(host_->Workers().empty());
  const auto [other, others_channel] = AddWorker();
  EXPECT_OK(host_->Inferred(other, others_channel->requests[0].id, Likes(2)));
  EXPECT_THAT(tokens_, ElementsAre(1, 2));
}

TEST_F(ServingHostTest, WhoseTextIsCancelledMayLeave) {
  const auto [worker, channel] = AddWorker();
  ASSERT_OK_AND_ASSIGN(const int64_t text, Generate({0}, 5));
  EXPECT_OK(host_->Leave(worker));
  EXPECT_FALSE(channel->finished);
  host_->CancelText(text);
  EXPECT_TRUE(channel->finished);
}

TEST_F(ServingHostTest, AnErrorOfTheWorkerEndsTheText) {
  const auto [worker, channel] = AddWorker();
  ASSERT_OK(Generate({0}, 5));
  ASSERT_OK(host_->Inferred(worker, channel->requests[0].id, absl::InternalError("no memory")));
  ASSERT_EQ(ends_.size(), 1u);
  EXPECT_THAT(ends_[0], StatusIs(StatusCode::kInternal, "no memory"));
}

TEST_F(ServingHostTest, WrongRequestsAreRefusedByField) {
  EXPECT_THAT(Generate({}, 1), StatusIs(StatusCode::kInvalidArgument, "prompt"));
  EXPECT_THAT(Generate({4}, 1), StatusIs(StatusCode::kInvalidArgument, "prompt"));
  EXPECT_THAT(Generate({0}, 0), StatusIs(StatusCode::kInvalidArgument, "max_tokens"));
  const auto [worker, channel] = AddWorker();
  ASSERT_OK(Generate({0}, 1));
  EXPECT_THAT(host_->Inferred(worker, channel->requests[0].id, std::vector<float>(3)),
              StatusIs(StatusCode::kInvalidArgument, "inferred.logits"));
  EXPECT_THAT(host_->PassDone(worker, StepId(0), {}, {}), StatusIs(StatusCode::kFailedPrecondition));
}

TEST_F(ServingHostTest, AWorkerThatIsSilentForALeaseIsEndedAndItsTextMoves) {
  const auto [silent, silent_channel] = AddWorker();
  ASSERT_OK(Generate({0}, 1));
  now_ += host_->lease() / 2;
  const auto [alive, alive_channel] = AddWorker();
  host_->EndExpired();
  EXPECT_OK(silent_channel->closed);
  now_ += host_->lease() / 2;
  EXPECT_OK(host_->Heartbeat(alive));
  host_->EndExpired();
  EXPECT_THAT(silent_channel->closed, StatusIs(StatusCode::kAborted, "lease"));
  EXPECT_OK(alive_channel->closed);
  EXPECT_EQ(alive_channel->requests.size(), 1u);
  EXPECT_THAT(host_->Heartbeat(silent), StatusIs(StatusCode::kNotFound));
  EXPECT_EQ(host_->Workers().size(), 1u);
}

TEST_F(ServingHostTest, AWorkerThatAttachesAndNeverConnectsIsForgotten) {
  ASSERT_OK(host_->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1}));
  now_ += host_->lease();
  host_->EndExpired();
  EXPECT_TRUE(host_->Workers().empty());
}

TEST_F(ServingHostTest, ItsStatusSaysHowLongAWorkerHasBeenSilentAndHowManyCameAndWereLost) {
  const auto [worker, channel] = AddWorker();
  ASSERT_OK(Generate({0}, 1));
  now_ += absl::Seconds(12);
  RunStatus status;
  host_->FillWorkers(status);
  ASSERT_EQ(status.workers.size(), 1u);
  EXPECT_EQ(status.workers[0].silent_for, absl::Seconds(12));
  EXPECT_EQ(status.lease_seconds, 30);
  EXPECT_EQ(status.counts.workers_attached, 1);
  EXPECT_EQ(status.counts.workers_lost, 0);
  now_ += host_->lease();
  testing::internal::CaptureStderr();
  host_->EndExpired();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("WARNING worker_lost worker=1 texts_to_move=1 why=\"the worker's lease has run out\""));
  host_->Disconnect(worker, channel->closed);  // as its stream ends, too
  host_->FillWorkers(status);
  EXPECT_TRUE(status.workers.empty());
  EXPECT_EQ(status.counts.workers_attached, 1);
  EXPECT_EQ(status.counts.workers_lost, 1);
}

TEST_F(ServingHostTest, WhoComesAndGoesIsLoggedAndWhoWasToldToEndIsNotLost) {
  testing::internal::CaptureStderr();
  const auto [leaving, leaving_channel] = AddWorker();
  EXPECT_OK(host_->Leave(leaving));
  host_->Disconnect(leaving, absl::OkStatus());
  const auto [broken, broken_channel] = AddWorker();
  host_->Disconnect(broken, absl::UnavailableError("the worker's connection is broken"));
  const auto [last, last_channel] = AddWorker();
  host_->Finish();
  host_->Disconnect(last, absl::OkStatus());
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_THAT(log, HasSubstr("INFO worker_attached worker=1 device=cpu device_model=test device_cap_bytes=1"));
  EXPECT_THAT(log, HasSubstr("INFO worker_left worker=1"));
  EXPECT_THAT(log, HasSubstr("WARNING worker_lost worker=2 texts_to_move=0 why=\"the worker's connection is broken\""));
  EXPECT_THAT(log, HasSubstr("INFO worker_left worker=3"));
  RunStatus status;
  host_->FillWorkers(status);
  EXPECT_EQ(status.counts.workers_attached, 3);
  EXPECT_EQ(status.counts.workers_lost, 1);
}

TEST_F(ServingHostTest, ATextThatNoWorkerComesForEnds) {
  const auto [worker, channel] = AddWorker();
  ASSERT_OK(Generate({0}, 2));
  now_ += absl::Minutes(10);
  ASSERT_OK(host_->Inferred(worker, channel->requests[0].id, Likes(1)));  // it was slow, and alive
  host_->EndExpired();
  EXPECT_TRUE(ends_.empty());
  host_->Disconnect(worker, absl::UnavailableError("gone"));
  now_ += ServingHost::longest_wait();
  host_->EndExpired();
  EXPECT_TRUE(ends_.empty());
  now_ += absl::Seconds(1);
  host_->EndExpired();
  host_->EndExpired();
  EXPECT_THAT(ends_, ElementsAre(StatusIs(StatusCode::kUnavailable, "no worker was there for 2m")));
  EXPECT_THAT(tokens_, ElementsAre(1));
}

TEST_F(ServingHostTest, ATextWaitsForAWorkerThatIsStillStarting) {
  ASSERT_OK(Generate({0}, 1));
  const WorkerId worker = host_->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1}).value();
  for (int i = 0; i < 10; ++i) {
    now_ += host_->lease() - absl::Seconds(1);
    ASSERT_OK(host_->Heartbeat(worker));
    host_->EndExpired();
  }
  EXPECT_TRUE(ends_.empty());
}

TEST_F(ServingHostTest, WhatAWorkerSaysOfItselfIsCheckedAsInTraining) {
  EXPECT_THAT(host_->Attach({.device_name = "cpu", .device_model = "test"}),
              StatusIs(StatusCode::kInvalidArgument, "device_cap_bytes"));
  EXPECT_THAT(host_->Attach({.device_name = std::string(65, 'x'), .device_model = "test", .device_cap_bytes = 1}),
              StatusIs(StatusCode::kInvalidArgument, "device_name"));
  testing::internal::CaptureStderr();  // a line of the log for each
  for (size_t i = 0; i < kMaxWorkers; ++i)
    ASSERT_OK(host_->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1}));
  testing::internal::GetCapturedStderr();
  EXPECT_THAT(host_->Attach({.device_name = "cpu", .device_model = "test", .device_cap_bytes = 1}),
              StatusIs(StatusCode::kUnavailable));
}

TEST_F(ServingHostTest, FinishTellsEveryWorker) {
  const auto [worker, channel] = AddWorker();
  host_->Finish();
  EXPECT_TRUE(channel->finished);
}

TEST_F(ServingHostTest, AClassifierAnswersOnceWithTheLogitsOfAllClasses) {
  RunConfig run;
  run.model = {.family = ModelFamily::kBert, .context = 3, .vocab = 9};
  run.model.num_classes = 4;
  host_ = std::make_unique<ServingHost>(run, [this] { return now_; });
  const auto [worker, channel] = AddWorker();
  EXPECT_THAT(Generate({8}, 2), StatusIs(absl::StatusCode::kInvalidArgument, "max_tokens: 2, want 1 of a classifier"));
  ASSERT_OK_AND_ASSIGN(const int64_t text, Generate({8}, 1));
  ASSERT_OK(host_->Inferred(worker, text, Likes(3)));
  EXPECT_THAT(tokens_, ElementsAre(3));
  EXPECT_THAT(class_logits_, ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(ends_, ElementsAre(absl::OkStatus()));
}

}  // namespace
}  // namespace eps::server
