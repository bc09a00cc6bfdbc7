#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/formats/document_index_writer.h"
#include "common/samples/sample_source.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;

struct Answers {
  int64_t num_tokens;
  std::vector<TokenRange> counted;
  std::optional<int64_t> second_part;
  std::string ids = {};  // a byte each; empty: 10, 11, ... through the file
};

class PreferenceSamplesTest : public ::testing::Test {
 protected:
  void Write(const std::vector<Answers>& pairs) {
    ASSERT_OK_AND_ASSIGN(auto writer,
                         DocumentIndexWriter::Create(
                             DocumentIndexPath(path()),
                             {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .may_be_cut = false}));
    std::string bytes;
    for (const Answers& pair : pairs) {
      for (size_t i = 0; i < static_cast<size_t>(pair.num_tokens); ++i) {
        bytes += {pair.ids.empty() ? static_cast<char>(10 + bytes.size() / 2) : pair.ids[i], '\0'};
      }
      ASSERT_OK(writer->Add({.num_tokens = pair.num_tokens,
                             .counted = pair.counted,
                             .label = std::nullopt,
                             .second_part = pair.second_part}));
    }
    ASSERT_OK(writer->Finish());
    ASSERT_OK(WriteFileAtomically(path(), bytes));
    run_.model.context = 4;
    run_.model.vocab = 100;
    run_.preferences.rule = PreferenceRule::kSimPo;
    run_.data = {.path = path(), .tokenizer = TokenForm::kTokenFile, .token_bytes = 2};
    run_.data.documents = DocumentMode::kPadded;
  }
  std::string path() const { return dir_.File("ids.bin"); }

  TempDir dir_;
  RunConfig run_;
};

TEST_F(PreferenceSamplesTest, APairIsTwoPaddedSequencesOfWhichTheAnswersAreCounted) {
  // A chosen one of three tokens and a rejected one of six, of which the last does not fit.
  Write({{9, {{1, 3}, {5, 9}}, 3}});
  ASSERT_OK_AND_ASSIGN(const auto source, SampleSource::Open(run_));
  ASSERT_EQ(source->num_samples(), 1);
  VnodeBatch batch;
  ASSERT_OK(source->Append(0, 0, batch));
  EXPECT_THAT(batch.tokens, ElementsAre(10, 11, 0, 0, 13, 14, 15, 16));
  EXPECT_THAT(batch.labels, ElementsAre(11, 12, -100, -100, -100, 15, 16, 17));
  EXPECT_THAT(batch.document_first, ElementsAre(0, 0, 2, 2, 0, 0, 0, 0));
  EXPECT_EQ(batch.num_padding, 2);
  EXPECT_EQ(batch.num_pairs, 1);
  ASSERT_OK(source->Append(0, 1, batch));
  EXPECT_EQ(batch.num_pairs, 2);
  EXPECT_EQ(batch.tokens.size(), 16u);
  const std::optional<DocumentFigures> figures = source->CountDocuments();
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->documents, 1);
  EXPECT_EQ(figures->counted_tokens, 5);
  EXPECT_EQ(figures->ended_early, 1);
  EXPECT_EQ(figures->tokens_left_out, 1);
  EXPECT_EQ(figures->left_out, 0);
  EXPECT_THAT(source->files(), ElementsAre(path(), DocumentIndexPath(path())));
}

TEST_F(PreferenceSamplesTest, APairOfWhichAnAnswerLiesBehindTheContextIsLeftOut) {
  Write({{9, {{1, 3}, {8, 9}}, 3}, {4, {{1, 2}, {3, 4}}, 2}});
  ASSERT_OK_AND_ASSIGN(const auto source, SampleSource::Open(run_));
  ASSERT_EQ(source->num_samples(), 1);
  EXPECT_EQ(source->CountDocuments()->left_out, 1);
  VnodeBatch batch;
  ASSERT_OK(source->Append(0, 0, batch));
  EXPECT_THAT(batch.labels, ElementsAre(20, -100, -100, -100, 22, -100, -100, -100));

  Write({{9, {{1, 3}, {8, 9}}, 3}});
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "data.path: of none of the 1 pairs of"));
}

TEST_F(PreferenceSamplesTest, APairWhoseAnswersDifferBehindTheContextIsLeftOut) {
  Answers pair = {12, {{1, 6}, {7, 12}}, 6, "\1\2\3\4\5\6\1\2\3\4\5\7"};
  Write({pair, {4, {{1, 2}, {3, 4}}, 2}});
  ASSERT_OK_AND_ASSIGN(const auto source, SampleSource::Open(run_));
  EXPECT_EQ(source->num_samples(), 1);
  EXPECT_EQ(source->CountDocuments()->left_out, 1);
  pair.ids[10] = '\6';
  Write({pair});
  ASSERT_OK_AND_ASSIGN(const auto differing, SampleSource::Open(run_));
  EXPECT_EQ(differing->num_samples(), 1);
}

TEST_F(PreferenceSamplesTest, PairsOfTextsWithClassesAreNoPairsOfAnswers) {
  Write({{4, {{1, 2}, {3, 4}}, 2}});
  ASSERT_OK_AND_ASSIGN(
      auto writer,
      DocumentIndexWriter::Create(
          DocumentIndexPath(path()),
          {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .may_be_cut = false, .has_labels = true}));
  const std::vector<TokenRange> counted = {{0, 4}};
  ASSERT_OK(writer->Add({.num_tokens = 4, .counted = counted, .label = 1, .second_part = 2}));
  ASSERT_OK(writer->Finish());
  EXPECT_THAT(SampleSource::Open(run_), StatusIs(absl::StatusCode::kInvalidArgument, "is no pair of answers"));
}

TEST_F(PreferenceSamplesTest, ADocumentThatIsNoPairIsNamed) {
  Write({{4, {{1, 2}, {3, 4}}, 2}, {4, {{0, 4}}, std::nullopt}});
  EXPECT_THAT(SampleSource::Open(run_), StatusIs(absl::StatusCode::kInvalidArgument, "is no pair of answers"));
}

TEST_F(PreferenceSamplesTest, WithoutPreferencesPairsAreRefused) {
  Write({{9, {{1, 3}, {5, 9}}, 3}});
  run_.preferences = {};
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "has pairs of a chosen and a rejected answer"));
}

TEST_F(PreferenceSamplesTest, AnIdBeyondTheVocabularyIsFound) {
  Write({{9, {{1, 3}, {5, 9}}, 3}});
  run_.model.vocab = 18;  // the last token, which no sample has, is 18
  ASSERT_OK_AND_ASSIGN(const auto source, SampleSource::Open(run_));
  EXPECT_THAT(source->CheckIds(nullptr), StatusIs(absl::StatusCode::kInvalidArgument, "18"));
}

}  // namespace
}  // namespace eps
