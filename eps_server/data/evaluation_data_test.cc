#include "eps_server/data/evaluation_data.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/data/corpus_tokens.h"
#include "eps_server/data/step_data.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

std::string Rising(int first, int num_tokens) {
  std::string text;
  for (int i = 0; i < num_tokens; ++i) text += static_cast<char>(first + i);
  return text;
}

// context 4, 2 vnodes of 1 * 2 sequences: 4 sequences a round. The training data is of 10 samples.
class EvaluationDataTest : public ::testing::Test {
 protected:
  EvaluationDataTest() {
    run_.model.context = 4;
    run_.model.vocab = 256;
    run_.data.path = dir_.File("text");
    run_.batch = {.virtual_nodes = 2, .micro_batches = 1, .micro_batch = 2};
    run_.evaluation = {.held_out = 0.3, .every_steps = 1};
    EXPECT_OK(WriteFileAtomically(run_.data.path, Rising(0, 41)));
  }
  absl::StatusOr<std::unique_ptr<EvaluationData>> Open() {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StepData> training, StepData::Create(run_));
    return EvaluationData::Open(run_, training.get(), dir_.File("evaluation"), 1);
  }

  TempDir dir_;
  RunConfig run_;
};

TEST_F(EvaluationDataTest, WhatIsHeldOutIsTheLastSamplesAndTheRestOfTheRoundIsNotCounted) {
  ASSERT_OK_AND_ASSIGN(const auto data, Open());
  EXPECT_EQ(data->num_samples(), 3);
  ASSERT_EQ(data->num_rounds(), 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> round, data->Read(0));
  ASSERT_EQ(round.size(), 2u);
  EXPECT_EQ(round[0].tokens, (std::vector<int32_t>{28, 29, 30, 31, 32, 33, 34, 35}));
  EXPECT_EQ(round[1].vnode, 1);
  EXPECT_EQ(round[1].tokens, (std::vector<int32_t>{36, 37, 38, 39, 0, 0, 0, 0}));
  EXPECT_EQ(round[1].labels, (std::vector<int32_t>{37, 38, 39, 40, -100, -100, -100, -100}));
  EXPECT_TRUE(round[1].document_first.empty());
}

TEST_F(EvaluationDataTest, AFileIsReadInRoundsAndOnlyItsFirstSamplesAreTakenWhereFewerAreWanted) {
  ASSERT_OK(WriteFileAtomically(dir_.File("other"), Rising(100, 25)));
  run_.evaluation = {.path = dir_.File("other"), .every_steps = 1};
  ASSERT_OK_AND_ASSIGN(auto data, Open());
  EXPECT_EQ(data->num_samples(), 6);
  ASSERT_EQ(data->num_rounds(), 2);
  ASSERT_OK_AND_ASSIGN(std::vector<VnodeBatch> round, data->Read(1));
  EXPECT_EQ(round[0].tokens, (std::vector<int32_t>{116, 117, 118, 119, 120, 121, 122, 123}));
  EXPECT_EQ(CountedTokens(round[1]), 0);
  run_.evaluation.samples = 1;
  ASSERT_OK_AND_ASSIGN(data, Open());
  EXPECT_EQ(data->num_rounds(), 1);
  ASSERT_OK_AND_ASSIGN(round, data->Read(0));
  EXPECT_EQ(CountedTokens(round[0]) + CountedTokens(round[1]), 4);
}

TEST_F(EvaluationDataTest, LabelsThatMeanAnotherClassThanInTheTrainingAreRefused) {
  run_.model.family = ModelFamily::kBert;
  run_.model.num_classes = 2;
  run_.data = {.path = dir_.File("train.tsv"), .is_table = true, .documents = DocumentMode::kPadded};
  run_.evaluation = {.path = dir_.File("held.tsv"), .every_steps = 1};
  ASSERT_OK(WriteFileAtomically(run_.data.path, "text\tlabel\na\t1\nb\t0\n"));
  const auto open = [&](const std::string& table) -> absl::StatusOr<std::unique_ptr<EvaluationData>> {
    EPS_RETURN_IF_ERROR(WriteFileAtomically(run_.evaluation.path, table));
    EPS_ASSIGN_OR_RETURN(const RunConfig of_tokens, WithTokenFile(run_, dir_.File("data"), 1));
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StepData> training, StepData::Create(of_tokens));
    return EvaluationData::Open(run_, training.get(), dir_.File("evaluation"), 1);
  };
  EXPECT_OK(open("text\tlabel\nc\t1\n"));
  EXPECT_THAT(open("text\tlabel\nc\tno\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "held.tsv are names (no), but the model's classes are"));
  run_.model.class_names = {"1", "0"};
  ASSERT_OK_AND_ASSIGN(const auto data, open("text\tlabel\nc\t1\nd\t0\n"));
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> round, data->Read(0));
  EXPECT_EQ(round[0].labels, (std::vector<int32_t>{0, 1})) << "by name";
}

TEST_F(EvaluationDataTest, OfSeveralRangesEachGivesItsShare) {
  ASSERT_OK_AND_ASSIGN(const auto training, StepData::Create(run_));
  const SampleRange all = training->held_out().front();
  const SampleRange first = {all.source, 0, 6}, second = {all.source, 6, 3};
  run_.evaluation.samples = 3;
  const EvaluationData data(run_, {first, second});
  EXPECT_EQ(data.num_samples(), 3);
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> round, data.Read(0));
  EXPECT_EQ(round[0].tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(round[1].tokens[0], 24);
}

TEST_F(EvaluationDataTest, JsonlIsMadeIntoTokensAndPaddingIsADocumentOfItsOwn) {
  run_.data = {.path = dir_.File("text.jsonl"), .is_jsonl = true, .documents = DocumentMode::kPacked};
  ASSERT_OK(WriteFileAtomically(run_.data.path, "{\"text\": \"abc\"}\n"));
  run_.evaluation = {.path = dir_.File("other.jsonl"), .every_steps = 1};
  const auto open = [&]() -> absl::StatusOr<std::unique_ptr<EvaluationData>> {
    RunConfig plain = run_;  // of some training data
    plain.data = {.path = dir_.File("text")};
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<StepData> training, StepData::Create(plain));
    return EvaluationData::Open(run_, training.get(), dir_.File("evaluation"), 1);
  };
  EXPECT_THAT(open(), StatusIs(absl::StatusCode::kNotFound, "evaluation.path"));
  ASSERT_OK(WriteFileAtomically(run_.evaluation.path, "{\"text\": \"abc\"}\n"));
  ASSERT_OK_AND_ASSIGN(const auto data, open());
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> round, data->Read(0));
  EXPECT_EQ(round[0].tokens, (std::vector<int32_t>{'a', 'b', 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(round[0].document_first, (std::vector<int32_t>{0, 0, 2, 2, 0, 0, 0, 0}));
}

TEST_F(EvaluationDataTest, ErrorsNameTheEvaluationsFile) {
  run_.evaluation = {.path = dir_.File("none"), .every_steps = 1};
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kNotFound, "evaluation.path"));
  ASSERT_OK(WriteFileAtomically(run_.evaluation.path, "abcd"));
  EXPECT_THAT(Open(), StatusIs(absl::StatusCode::kInvalidArgument, "evaluation.path"));
}

}  // namespace
}  // namespace eps::server
