#include "gpu_worker/transport/control_messages.h"

#include <chrono>

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/choices/choices.h"
#include "common/choices/choices_message.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using absl::StatusCode;

std::string Bytes(const std::vector<int32_t>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int32_t));
}

class ControlMessagesTest : public testing::Test {
 protected:
  ControlMessagesTest() {
    attachment_.incarnation = 5;
    attachment_.run.model = {.num_layers = 1, .d_model = 4, .num_heads = 1, .context = 3, .vocab = 10};
    attachment_.run.batch = {.virtual_nodes = 2, .micro_batches = 1, .micro_batch = 1};
    attachment_.run.steps = 4;

    event_.set_incarnation(5);
    proto::Assign& assign = *event_.mutable_assign();
    assign.set_step(3);
    assign.set_counted_tokens(6);
    assign.set_loss_scale(0x1p15);
    for (int vnode : {0, 1}) {
      proto::VnodeData& data = *assign.add_vnodes();
      data.set_vnode(vnode);
      data.set_tokens(Bytes({1, 2, 9}));
      data.set_labels(Bytes({2, -100, 0}));
    }
  }

  void ExpectRefused(const std::string& field) {
    EXPECT_THAT(ToOrder(event_, attachment_), StatusIs(StatusCode::kInvalidArgument, field));
  }

  Attachment attachment_;
  proto::DaemonEvent event_;
};

TEST_F(ControlMessagesTest, AnAssignmentComesThroughWhole) {
  ASSERT_OK_AND_ASSIGN(const Order order, ToOrder(event_, attachment_));
  const auto& assignment = std::get<Assignment>(order);
  EXPECT_EQ(assignment.step, StepId(3));
  EXPECT_EQ(assignment.counted_tokens, 6);
  EXPECT_EQ(assignment.loss_scale, 0x1p15);
  ASSERT_EQ(assignment.vnodes.size(), 2u);
  EXPECT_EQ(assignment.vnodes[1].vnode, 1);
  EXPECT_EQ(assignment.vnodes[1].tokens, (std::vector<int32_t>{1, 2, 9}));
  EXPECT_EQ(assignment.vnodes[1].labels, (std::vector<int32_t>{2, -100, 0}));
}

TEST_F(ControlMessagesTest, AnotherIncarnationIsAnotherDaemon) {
  event_.set_incarnation(6);
  EXPECT_THAT(ToOrder(event_, attachment_), StatusIs(StatusCode::kUnavailable, "incarnation"));
}

TEST_F(ControlMessagesTest, ALossScaleThatIsNoneIsRefused) {
  for (const double bad : {0.0, -1.0, 3.0, 0x1p25, 0x1p-25, std::nan(""), HUGE_VAL}) {
    event_.mutable_assign()->set_loss_scale(bad);
    ExpectRefused(absl::StrCat("assign.loss_scale: ", bad));
  }
}

TEST_F(ControlMessagesTest, AStepOutsideOfTheRunIsRefused) {
  event_.mutable_assign()->set_step(4);
  ExpectRefused("assign.step");
}

TEST_F(ControlMessagesTest, AnEvaluationMayBeOfTheVersionBehindTheLastStepAndIsOfNoGroup) {
  proto::Assign& assign = *event_.mutable_assign();
  assign.set_step(4);
  assign.set_evaluation_round(2);
  ASSERT_OK_AND_ASSIGN(const Order order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<Assignment>(order).evaluation_round, 2);
  EXPECT_EQ(std::get<Assignment>(order).step, StepId(4));
  assign.set_step(5);
  ExpectRefused("assign.step");
  assign.set_step(4);
  assign.set_evaluation_round(-1);
  ExpectRefused("assign.evaluation_round");
  assign.set_evaluation_round(0);
  assign.mutable_group()->set_group(1);
  ExpectRefused("assign.group");
}

TEST_F(ControlMessagesTest, DroppedLayersAreBlocksRisingAndOfNoEvaluation) {
  attachment_.run.model.num_layers = 3;
  proto::Assign& assign = *event_.mutable_assign();
  assign.add_dropped_layers(1);
  assign.add_dropped_layers(3);
  ASSERT_OK_AND_ASSIGN(const Order order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<Assignment>(order).dropped, (std::vector<LayerId>{LayerId(1), LayerId(3)}));
  for (const int bad : {-1, 0, 1, 4}) {
    assign.set_dropped_layers(1, bad);
    ExpectRefused(absl::StrCat("assign.dropped_layers: ", bad));
  }
  assign.set_dropped_layers(1, 2);
  assign.set_evaluation_round(0);
  ExpectRefused("assign.dropped_layers");
}

TEST_F(ControlMessagesTest, VnodesAreInRangeAndRising) {
  event_.mutable_assign()->mutable_vnodes(1)->set_vnode(2);
  ExpectRefused("assign.vnodes.vnode");
  event_.mutable_assign()->mutable_vnodes(1)->set_vnode(0);
  ExpectRefused("assign.vnodes.vnode");
}

TEST_F(ControlMessagesTest, TokensAreAsManyAsTheRunSaysAndInTheVocabulary) {
  proto::VnodeData& data = *event_.mutable_assign()->mutable_vnodes(0);
  data.set_tokens(Bytes({1, 2}));
  ExpectRefused(".tokens bytes");
  data.set_tokens(Bytes({1, 2, 10}));
  ExpectRefused(".tokens");
  data.set_tokens(Bytes({1, 2, -100}));
  ExpectRefused(".tokens");
  data.set_tokens(Bytes({1, 2, 3}));
  data.set_labels(Bytes({1, 2, -1}));
  ExpectRefused(".labels");
  data.set_labels(Bytes({1, 2, 3, 4}));
  ExpectRefused(".labels bytes");
}

TEST_F(ControlMessagesTest, AGroupOfAnAssignmentHasThisWorkersVnodesAtItsRank) {
  proto::AssignedGroup& group = *event_.mutable_assign()->mutable_group();
  group.set_group(7);
  group.set_rank(1);
  group.add_members()->add_vnodes(5);
  proto::MemberVnodes& own = *group.add_members();
  for (const int vnode : {0, 1}) own.add_vnodes(vnode);
  ASSERT_OK_AND_ASSIGN(const Order order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<Assignment>(order).group, (GroupVnodes{.group = 7, .rank = 1, .vnodes = {{5}, {0, 1}}}));
  group.set_rank(0);
  ExpectRefused("assign.group.members[0].vnodes");
  group.set_rank(2);
  ExpectRefused("assign.group.rank: 2");
  group.set_rank(-1);
  ExpectRefused("assign.group.rank: -1");
  group.set_rank(1);
  group.set_group(0);
  ExpectRefused("assign.group.group");
  group.set_group(7);
  while (group.members_size() < 65) group.add_members();
  ExpectRefused("assign.group.members: 65");
}

TEST_F(ControlMessagesTest, OrdersToFormAndEndGroupsAreChecked) {
  proto::FoundGroup& found = *event_.mutable_found_group();
  found.set_group(7);
  found.set_size(64);
  ASSERT_OK_AND_ASSIGN(Order order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<FormGroupOrder>(order).size, 64);
  EXPECT_EQ(std::get<FormGroupOrder>(order).rank, 0);
  found.set_size(1);
  ExpectRefused("found_group.size: 1");
  found.set_size(2);
  found.set_group(0);
  ExpectRefused("found_group.group");

  proto::JoinGroup& join = *event_.mutable_join_group();
  join.set_group(7);
  join.set_size(3);
  join.set_rank(2);
  join.set_token("T");
  ASSERT_OK_AND_ASSIGN(order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<FormGroupOrder>(order).token, "T");
  join.set_rank(0);
  ExpectRefused("join_group.rank: 0");
  join.set_rank(3);
  ExpectRefused("join_group.rank: 3");
  join.set_rank(1);
  join.set_token(std::string(1025, 'x'));
  ExpectRefused("join_group.token bytes: 1025");

  event_.mutable_end_group()->set_group(7);
  event_.mutable_end_group()->set_reason("over");
  ASSERT_OK_AND_ASSIGN(order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<EndGroupOrder>(order).reason, "over");
}

TEST_F(ControlMessagesTest, AnInferenceHasOneToContextTokens) {
  event_.mutable_infer()->set_request_id(8);
  ExpectRefused("infer.tokens");
  event_.mutable_infer()->set_tokens("abc");
  ExpectRefused("infer.tokens");
  event_.mutable_infer()->set_tokens(Bytes({1, 2, 3, 4}));
  ExpectRefused("infer.tokens");
  event_.mutable_infer()->set_tokens(Bytes({1, 2}));
  ASSERT_OK_AND_ASSIGN(const Order order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<InferOrder>(order).request_id, 8);
  EXPECT_EQ(std::get<InferOrder>(order).tokens, (std::vector<int32_t>{1, 2}));
}

TEST_F(ControlMessagesTest, AnEventOfAnUnknownKindIsRefused) {
  event_.clear_event();
  ExpectRefused("event");
}

TEST_F(ControlMessagesTest, AnAttachmentNamesAWorkerALeaseAndARun) {
  proto::AttachReply reply;
  EXPECT_THAT(ToAttachment(reply), StatusIs(StatusCode::kInvalidArgument, "worker_id"));
  reply.set_worker_id(1);
  EXPECT_THAT(ToAttachment(reply), StatusIs(StatusCode::kInvalidArgument, "lease_millis"));
  reply.set_lease_millis(86'400'001);
  EXPECT_THAT(ToAttachment(reply), StatusIs(StatusCode::kInvalidArgument, "lease_millis: 86400001"));
  reply.set_lease_millis(1000);
  reply.set_run_config("nonsense {");
  EXPECT_THAT(ToAttachment(reply), StatusIs(StatusCode::kInvalidArgument, "run_config"));
  reply.set_clock_nanos(-1);
  EXPECT_THAT(ToAttachment(reply), StatusIs(StatusCode::kInvalidArgument, "clock_nanos"));
}

TEST_F(ControlMessagesTest, APassReportComesThroughWhole) {
  const PassReport report = {.step = StepId(2),
                             .evaluation_round = 7,
                             .records = {{.vnode = 1,
                                          .loss_sum = 2.5,
                                          .counted_tokens = 3,
                                          .finite = false,
                                          .correct = 2,
                                          .chosen_reward = 0.75,
                                          .rejected_reward = -1.5,
                                          .expert_rows = {5, 0, 4000000000}}},
                             .seconds = 0.5,
                             .wait_seconds = {{"pull", 0.25}},
                             .device_peak_bytes = 77,
                             .device_outside_bytes = 33};
  const proto::PassDone done = ToProto(report);
  EXPECT_EQ(done.step(), 2);
  ASSERT_EQ(done.records_size(), 1);
  EXPECT_EQ(done.records(0).vnode(), 1);
  EXPECT_EQ(done.records(0).loss_sum(), 2.5);
  EXPECT_EQ(done.records(0).counted_tokens(), 3);
  EXPECT_FALSE(done.records(0).finite());
  EXPECT_EQ(done.records(0).correct(), 2);
  EXPECT_EQ(done.records(0).chosen_reward(), 0.75);
  EXPECT_EQ(done.records(0).rejected_reward(), -1.5);
  EXPECT_THAT(done.records(0).expert_rows(), testing::ElementsAre(5, 0, 4000000000));
  EXPECT_EQ(done.evaluation_round(), 7);
  EXPECT_FALSE(ToProto({.step = StepId(2)}).has_evaluation_round());
  EXPECT_EQ(done.wait_seconds().at("pull"), 0.25);
  EXPECT_EQ(done.device_peak_bytes(), 77);
  EXPECT_EQ(done.device_outside_bytes(), 33);
}

TEST_F(ControlMessagesTest, ChoicesComeThroughWholeOrAreRefusedByField) {
  const Choices choices = {{"a product", "00ff"}, {"b", "1"}};
  *event_.mutable_choices() = ChoicesToProto(choices);
  ASSERT_OK_AND_ASSIGN(const Order order, ToOrder(event_, attachment_));
  EXPECT_EQ(std::get<ChoicesOrder>(order).choices, choices);
  event_.mutable_choices()->mutable_choices(1)->clear_value();
  ExpectRefused("choices[1].value: 0 bytes");
}

TEST(ClockOffsetTest, IsToldFromTheMiddleOfACall) {
  using std::chrono::milliseconds;
  using Time = std::chrono::steady_clock::time_point;
  EXPECT_EQ(ClockOffset(Time(milliseconds(1000)), milliseconds(5001), Time(milliseconds(1002))), milliseconds(4000));
  EXPECT_EQ(ClockOffset(Time(milliseconds(5000)), milliseconds(1), Time(milliseconds(5002))), milliseconds(-5000));
  // One host: the daemon looked at the same clock within the call.
  EXPECT_EQ(ClockOffset(Time(milliseconds(1000)), milliseconds(1009), Time(milliseconds(1010))), milliseconds(0));
}

TEST(AttachmentTest, HoldsTheChoicesOfTheDeviceModel) {
  RunConfig run;
  run.model = {.num_layers = 1, .d_model = 4, .num_heads = 1, .context = 3, .vocab = 10};
  run.data.path = "/data";
  run.optimizer.peak_learning_rate = 0.1;
  run.steps = 1;
  proto::AttachReply reply;
  reply.set_worker_id(1);
  reply.set_lease_millis(1);
  reply.set_run_config(SerializeRunConfig(run));
  EXPECT_TRUE(ToAttachment(reply).value().choices.empty());
  proto::Choice& choice = *reply.add_choices();
  choice.set_key("a product");
  choice.set_value("00ff");
  EXPECT_EQ(ToAttachment(reply).value().choices, (Choices{{"a product", "00ff"}}));
  choice.set_key(std::string(257, 'x'));
  EXPECT_THAT(ToAttachment(reply), StatusIs(StatusCode::kInvalidArgument, "choices[0].key: 257 bytes"));
}

}  // namespace
}  // namespace eps::worker
