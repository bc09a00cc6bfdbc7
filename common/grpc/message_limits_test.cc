#include "common/grpc/message_limits.h"

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "common/model/class_name_check.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "proto/control.pb.h"

namespace eps {
namespace {

// A run whose samples have all that samples can have.
RunConfig LargeRun() {
  RunConfig run;
  run.model.family = ModelFamily::kBert;
  run.model.context = 512;
  run.model.vocab = 100;
  run.model.num_types = 2;
  run.batch = {.virtual_nodes = 700, .micro_batches = 2, .micro_batch = 3};
  run.data.documents = DocumentMode::kPadded;
  return run;
}

TEST(MessageLimitsTest, AllOfAStepFitsIntoOneMessage) {
  const RunConfig run = LargeRun();
  proto::DaemonEvent event;
  for (int v = 0; v < run.batch.virtual_nodes; ++v) {
    const std::string array(static_cast<size_t>(run.batch.sequences_per_vnode() * run.model.context) * 4, 'x');
    proto::VnodeData& data = *event.mutable_assign()->add_vnodes();
    data.set_vnode(v);
    data.set_tokens(array);
    data.set_labels(array);
    data.set_types(array);
    data.set_document_first(array);
  }
  ASSERT_OK_AND_ASSIGN(const int most, MaxControlMessageBytes(run));
  EXPECT_LE(event.ByteSizeLong(), static_cast<size_t>(most));
  EXPECT_GT(event.ByteSizeLong(), static_cast<size_t>(most) - 2 * kSmallMessageBytes);
}

TEST(MessageLimitsTest, WhatAWorkerSaysOfAStepFitsIntoOneMessage) {
  RunConfig run;
  run.model.family = ModelFamily::kLlama;
  run.model.num_layers = 100;
  run.model.vocab = 100;
  run.model.context = 8;
  run.model.experts = {.num = 128, .per_token = 2};
  run.batch = {.virtual_nodes = 300, .micro_batches = 1, .micro_batch = 1};
  proto::WorkerEvent event;
  for (int v = 0; v < run.batch.virtual_nodes; ++v) {
    proto::Record& record = *event.mutable_pass_done()->add_records();
    record.set_vnode(v);
    record.set_loss_sum(1.5);
    record.set_counted_tokens(int64_t{1} << 62);
    record.set_correct(int64_t{1} << 62);
    record.set_finite(true);
    record.set_chosen_reward(1.5);
    record.set_rejected_reward(1.5);
    for (int i = 0; i < 100 * 128; ++i) record.add_expert_rows(~uint32_t{0});
  }
  ASSERT_OK_AND_ASSIGN(const int most, MaxControlMessageBytes(run));
  EXPECT_LE(event.ByteSizeLong(), static_cast<size_t>(most));
  EXPECT_GT(event.ByteSizeLong(), static_cast<size_t>(most) - 2 * kSmallMessageBytes);
}

TEST(MessageLimitsTest, ARunFitsIntoItsMessageWithAllTheNamesThatItsClassesMayHave) {
  RunConfig run = LargeRun();
  run.model.num_classes = 1 << 16;
  for (int i = 0; i < 1 << 16; ++i) {
    std::string name(16, '\1');  // 1 MiB in all, and as long as bytes can be once they are written as text
    for (int bit = 0; bit < 16; ++bit) name[static_cast<size_t>(bit)] = (i >> bit & 1) != 0 ? '\1' : '\2';
    run.model.class_names.push_back(name);
  }
  ASSERT_OK(CheckClassNames(run.model));
  const size_t num_bytes = SerializeRunConfig(run).size();
  EXPECT_GT(num_bytes, static_cast<size_t>(kSmallMessageBytes));
  EXPECT_LT(num_bytes, static_cast<size_t>(kRunMessageBytes) / 2);
  run.model.class_names.back() += "x";
  EXPECT_THAT(CheckClassNames(run.model),
              StatusIs(absl::StatusCode::kInvalidArgument, "1048577 bytes in all, must be at most 1048576"));
}

TEST(MessageLimitsTest, ABatchBeyondWhatAMessageCarriesIsRefused) {
  RunConfig run = LargeRun();
  run.batch.micro_batch = 1 << 10;
  EXPECT_THAT(MaxControlMessageBytes(run), StatusIs(absl::StatusCode::kInvalidArgument, "batch: a step has"));
}

}  // namespace
}  // namespace eps
