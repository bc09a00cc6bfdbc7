#include "cli/class_answer.h"

#include <initializer_list>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

constexpr absl::StatusCode kInternal = absl::StatusCode::kInternal;

proto::GenerateReply Reply(int32_t number, std::initializer_list<float> logits) {
  proto::GenerateReply reply;
  reply.set_token(number);
  for (const float logit : logits) reply.add_class_logits(logit);
  return reply;
}

TEST(ClassAnswerTest, IsTheClassByItsNameAndHowLikelyItIs) {
  ModelConfig config{.num_classes = 2};
  EXPECT_THAT(ClassLine(config, Reply(1, {0, 0})), IsOkAndHolds("1\t0.5000\n"));
  config.class_names = {"no", "a\tb"};
  EXPECT_THAT(ClassLine(config, Reply(0, {100, -100})), IsOkAndHolds("no\t1.0000\n"));
  EXPECT_THAT(ClassLine(config, Reply(1, {0, 0})), IsOkAndHolds("a\\tb\t0.5000\n"));
}

TEST(ClassAnswerTest, AnAnswerOfOtherClassesIsAnErrorThatNamesBothNumbers) {
  const ModelConfig config{.num_classes = 2};
  EXPECT_THAT(ClassLine(config, Reply(0, {1, 2, 3})), StatusIs(kInternal, "of 3 classes; the model has 2"));
  EXPECT_THAT(ClassLine(config, Reply(0, {})), StatusIs(kInternal, "of 0 classes; the model has 2"));
  EXPECT_THAT(ClassLine(config, Reply(2, {1, 2})), StatusIs(kInternal, "class 2; the model has 2, from 0 on"));
  EXPECT_THAT(ClassLine(config, Reply(-1, {1, 2})), StatusIs(kInternal, "class -1"));
}

}  // namespace
}  // namespace eps::cli
