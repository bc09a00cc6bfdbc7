#include "eps_server/data/step_data.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/formats/document_index_writer.h"
#include "common/schedule/sample_order.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// context 4, 2 vnodes of 1 * 2 sequences: 4 sequences a step.
RunConfig RunOn(const std::string& path) {
  RunConfig run;
  run.model.context = 4;
  run.model.vocab = 256;
  run.data.path = path;
  run.batch = {.virtual_nodes = 2, .micro_batches = 1, .micro_batch = 2};
  return run;
}

std::string Rising(int num_tokens) {
  std::string text(num_tokens, '\0');
  for (int i = 0; i < num_tokens; ++i) text[i] = static_cast<char>(i);
  return text;
}

TEST(StepDataTest, SequentialSamplesAreCutAndWrapAround) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("text"), Rising(25)));  // samples 0..5
  ASSERT_OK_AND_ASSIGN(auto data, StepData::Create(RunOn(dir.File("text"))));
  EXPECT_EQ(data->num_samples(), 6);
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> step0, data->Read(StepId(0)));
  ASSERT_EQ(step0.size(), 2u);
  EXPECT_EQ(step0[0].vnode, 0);
  EXPECT_EQ(step0[0].tokens, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(step0[0].labels, (std::vector<int32_t>{1, 2, 3, 4, 5, 6, 7, 8}));
  EXPECT_EQ(step0[1].vnode, 1);
  EXPECT_EQ(step0[1].tokens, (std::vector<int32_t>{8, 9, 10, 11, 12, 13, 14, 15}));
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> step1, data->Read(StepId(1)));
  EXPECT_EQ(step1[0].tokens, (std::vector<int32_t>{16, 17, 18, 19, 20, 21, 22, 23}));
  EXPECT_EQ(step1[0].labels.back(), 24);
  EXPECT_EQ(step1[1].tokens, step0[0].tokens);
  EXPECT_EQ(CountedTokens(step1[0]), 8);
}

TEST(StepDataTest, APairIsTwoSequencesOfAStepAndOneOfItsSamples) {
  TempDir dir;
  const std::string path = dir.File("ids.bin");
  ASSERT_OK_AND_ASSIGN(auto writer,
                       DocumentIndexWriter::Create(
                           DocumentIndexPath(path),
                           {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .may_be_cut = false}));
  std::string bytes;
  for (int pair = 0; pair < 5; ++pair) {
    for (int i = 0; i < 4; ++i) bytes += {static_cast<char>(10 * pair + i), '\0'};
    const std::vector<TokenRange> counted = {{1, 2}, {3, 4}};
    ASSERT_OK(writer->Add({.num_tokens = 4, .counted = counted, .label = std::nullopt, .second_part = 2}));
  }
  ASSERT_OK(writer->Finish());
  ASSERT_OK(WriteFileAtomically(path, bytes));
  RunConfig run = RunOn(path);
  run.data.tokenizer = TokenForm::kTokenFile;
  run.data.documents = DocumentMode::kPadded;
  run.preferences.rule = PreferenceRule::kSimPo;
  ASSERT_OK_AND_ASSIGN(auto data, StepData::Create(run));
  EXPECT_EQ(data->num_samples(), 5);
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> step1, data->Read(StepId(1)));
  EXPECT_EQ(step1[0].tokens, (std::vector<int32_t>{20, 0, 0, 0, 22, 0, 0, 0}));
  EXPECT_EQ(step1[1].tokens, (std::vector<int32_t>{30, 0, 0, 0, 32, 0, 0, 0}));
  EXPECT_EQ(CountedTokens(step1[1]), 1);
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> step2, data->Read(StepId(2)));
  EXPECT_EQ(step2[0].tokens[0], 40);
  EXPECT_EQ(step2[1].tokens[0], 0);  // the first one again
}

TEST(StepDataTest, ShuffledTakesEverySampleOncePerEpoch) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("text"), Rising(4 * 12 + 1)));
  RunConfig run = RunOn(dir.File("text"));
  run.data.order = DataOrder::kShuffled;
  run.data.seed = 5;
  ASSERT_OK_AND_ASSIGN(auto data, StepData::Create(run));
  std::set<int32_t> firsts;
  for (int step = 0; step < 3; ++step) {
    ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> batches, data->Read(StepId(step)));
    for (const VnodeBatch& batch : batches) {
      for (size_t i = 0; i < batch.tokens.size(); i += 4) firsts.insert(batch.tokens[i]);
    }
  }
  EXPECT_EQ(firsts.size(), 12u);
}

TEST(StepDataTest, WhatIsHeldOutIsNeverTrainedOn) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("text"), Rising(4 * 12 + 1)));
  for (const DataOrder order : {DataOrder::kSequential, DataOrder::kShuffled}) {
    RunConfig run = RunOn(dir.File("text"));
    run.data.order = order;
    run.evaluation = {.held_out = 0.34, .every_steps = 1};
    ASSERT_OK_AND_ASSIGN(auto data, StepData::Create(run));
    EXPECT_EQ(data->num_samples(), 8);
    ASSERT_EQ(data->held_out().size(), 1u);
    EXPECT_EQ(data->held_out()[0].first, 8);
    EXPECT_EQ(data->held_out()[0].count, 4);
    std::multiset<int32_t> firsts;
    for (int step = 0; step < 4; ++step) {  // two epochs
      ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> batches, data->Read(StepId(step)));
      for (const VnodeBatch& batch : batches) {
        for (size_t i = 0; i < batch.tokens.size(); i += 4) firsts.insert(batch.tokens[i] / 4);
      }
    }
    EXPECT_EQ(firsts, (std::multiset<int32_t>{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}));
  }
  RunConfig run = RunOn(dir.File("one"));
  ASSERT_OK(WriteFileAtomically(dir.File("one"), Rising(5)));
  run.evaluation = {.held_out = 0.5, .every_steps = 1};
  EXPECT_THAT(StepData::Create(run), StatusIs(absl::StatusCode::kInvalidArgument, "evaluation.held_out"));
}

class SourcesTest : public ::testing::TestWithParam<DataOrder> {
 protected:
  SourcesTest() : run_(RunOn("")) {
    EXPECT_OK(WriteFileAtomically(dir_.File("low"), Rising(4 * 9 + 1)));  // samples begin at 0, 4, .. 32
    std::string high;
    for (int i = 100; i <= 100 + 4 * 5; ++i) high += static_cast<char>(i);  // at 100, 104, .. 116
    EXPECT_OK(WriteFileAtomically(dir_.File("high"), high));
    run_.data.order = GetParam();
    run_.data.seed = 5;
    run_.sources = {{.data = {.path = dir_.File("low")}, .weight = 3},
                    {.data = {.path = dir_.File("high")}, .weight = 1}};
  }
  // Of each sample in order: where it begins.
  std::vector<int32_t> Begins(const StepData& data, int64_t first_step, int64_t steps) const {
    std::vector<int32_t> begins;
    for (int64_t step = first_step; step < first_step + steps; ++step) {
      const auto batches = data.Read(StepId(step));
      EXPECT_OK(batches);
      for (const VnodeBatch& batch : *batches) {
        for (size_t i = 0; i < batch.tokens.size(); i += 4) begins.push_back(batch.tokens[i]);
      }
    }
    return begins;
  }

  TempDir dir_;
  RunConfig run_;
};
INSTANTIATE_TEST_SUITE_P(Orders, SourcesTest, ::testing::Values(DataOrder::kSequential, DataOrder::kShuffled));

TEST_P(SourcesTest, EachSourceHasItsShareAndIsGoneThroughEpochByEpoch) {
  ASSERT_OK_AND_ASSIGN(const auto data, StepData::Create(run_));
  EXPECT_EQ(data->num_samples(), 14);
  EXPECT_EQ(data->files(), (std::vector<std::string>{dir_.File("low"), dir_.File("high")}));
  std::vector<int32_t> low, high;
  for (const int32_t begin : Begins(*data, 0, 30)) (begin < 100 ? low : high).push_back(begin);
  EXPECT_EQ(low.size(), 90u);
  EXPECT_EQ(high.size(), 30u);
  for (size_t epoch = 0; epoch < 10; ++epoch) {
    EXPECT_EQ(std::set<int32_t>(low.begin() + epoch * 9, low.begin() + (epoch + 1) * 9).size(), 9u);
  }
  for (size_t epoch = 0; epoch < 6; ++epoch) {
    EXPECT_EQ(std::set<int32_t>(high.begin() + epoch * 5, high.begin() + (epoch + 1) * 5).size(), 5u);
  }
}

TEST_P(SourcesTest, AStepIsTheSameWhoeverReadIt) {
  ASSERT_OK_AND_ASSIGN(const auto data, StepData::Create(run_));
  ASSERT_OK_AND_ASSIGN(const auto again, StepData::Create(run_));
  const std::vector<int32_t> all = Begins(*data, 0, 20);
  const std::vector<int32_t> late = Begins(*again, 13, 7);
  EXPECT_TRUE(std::equal(late.begin(), late.end(), all.begin() + 13 * 4));
}

TEST_P(SourcesTest, OfEachSourceTheLastSamplesAreHeldOut) {
  run_.evaluation = {.held_out = 0.34, .every_steps = 1};
  ASSERT_OK_AND_ASSIGN(const auto data, StepData::Create(run_));
  ASSERT_EQ(data->held_out().size(), 2u);
  EXPECT_EQ(data->held_out()[0].first, 6);
  EXPECT_EQ(data->held_out()[0].count, 3);
  EXPECT_EQ(data->held_out()[1].first, 3);
  EXPECT_EQ(data->held_out()[1].count, 2);
  for (const int32_t begin : Begins(*data, 0, 20)) EXPECT_TRUE(begin < 24 || (begin >= 100 && begin < 112)) << begin;
}

TEST_P(SourcesTest, WhereOneHasDocumentsASampleOfAnotherIsOne) {
  run_.data.documents = DocumentMode::kPacked;  // as of a third
  ASSERT_OK_AND_ASSIGN(const auto data, StepData::Create(run_));
  ASSERT_OK_AND_ASSIGN(const std::vector<VnodeBatch> batches, data->Read(StepId(0)));
  EXPECT_EQ(batches[1].document_first, std::vector<int32_t>(8, 0));
}

TEST_P(SourcesTest, WhatIsWrongIsNamedByItsPlace) {
  ASSERT_OK(WriteFileAtomically(dir_.File("high"), "abc"));
  run_.sources[1].data.path_field = "data.sources[1].path";
  EXPECT_THAT(StepData::Create(run_), StatusIs(absl::StatusCode::kInvalidArgument, "data.sources[1].path"));
}

TEST(StepDataTest, NotCountedLabelsAreLeftOut) {
  VnodeBatch batch;
  batch.labels = {3, -100, 7, -100};
  EXPECT_EQ(CountedTokens(batch), 2);
}

TEST(StepDataTest, TooShortFileNamesWhatIsNeeded) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("text"), Rising(4)));
  EXPECT_THAT(StepData::Create(RunOn(dir.File("text"))),
              StatusIs(absl::StatusCode::kInvalidArgument, "text has 4 tokens; one sample needs 5"));
  EXPECT_THAT(StepData::Create(RunOn(dir.File("none"))), StatusIs(absl::StatusCode::kNotFound));
}

TEST(StepDataTest, IdBeyondTheVocabularyIsFoundAtTheStart) {
  TempDir dir;
  std::string bytes(2 * 40, '\0');
  bytes[2 * 33 + 1] = 1;  // token 33 is 256, far behind the first step's samples
  ASSERT_OK(WriteFileAtomically(dir.File("ids.bin"), bytes));
  RunConfig run = RunOn(dir.File("ids.bin"));
  run.data.tokenizer = TokenForm::kTokenFile;
  run.data.token_bytes = 2;
  EXPECT_THAT(StepData::Create(run), StatusIs(absl::StatusCode::kInvalidArgument, "66"));  // the offset
  run.model.vocab = 257;
  EXPECT_OK(StepData::Create(run));
  // Bytes can be too large as well, when the vocabulary is small.
  ASSERT_OK(WriteFileAtomically(dir.File("text"), "aaaaaaaaz"));
  RunConfig text = RunOn(dir.File("text"));
  text.model.vocab = 'b';
  EXPECT_THAT(StepData::Create(text), StatusIs(absl::StatusCode::kInvalidArgument, "122"));
}

// Two documents of 6 tokens, of which the last alone is counted, which no sample of 4 reaches.
std::string UncountedDocuments(const TempDir& dir) {
  const std::string path = dir.File("ids.bin");
  EXPECT_OK(WriteFileAtomically(path, std::string(24, '\0')));
  const auto writer = DocumentIndexWriter::Create(
      DocumentIndexPath(path), {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .may_be_cut = false});
  EXPECT_OK(writer);
  const std::vector<TokenRange> counted = {{5, 6}};
  for (int i = 0; i < 2; ++i) EXPECT_OK((*writer)->Add({.num_tokens = 6, .counted = counted}));
  EXPECT_OK((*writer)->Finish());
  return path;
}

TEST(StepDataTest, ARunOfWhichNoTokenIsCountedIsRefused) {
  TempDir dir;
  RunConfig run = RunOn(UncountedDocuments(dir));
  run.data.tokenizer = TokenForm::kTokenFile;
  run.data.documents = DocumentMode::kPadded;
  run.data.keeps_uncounted = true;
  EXPECT_THAT(StepData::Create(run),
              StatusIs(absl::StatusCode::kInvalidArgument, "data.uncounted: KEPT, but no token of " + run.data.path +
                                                               " is counted in its document's first 4"));
  run.sources = {{.data = run.data, .weight = 1}, {.data = run.data, .weight = 1}};
  EXPECT_THAT(StepData::Create(run),
              StatusIs(absl::StatusCode::kInvalidArgument, run.data.path + ", " + run.data.path));
  ASSERT_OK(WriteFileAtomically(dir.File("joined.bin"), std::string(24, '\0')));
  run.sources[1].data.path = dir.File("joined.bin");
  run.sources[1].data.documents = DocumentMode::kJoined;
  EXPECT_OK(StepData::Create(run).status()) << "of the other one all is counted";
  run.sources.clear();
  run.model.context = 5;
  EXPECT_OK(StepData::Create(run).status());
}

}  // namespace
}  // namespace eps::server
