#include "common/samples/sample_source.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/long_work.h"
#include "common/formats/document_index_writer.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// Ids 10, 11, ... of documents of 4, 3, 8 and 1 tokens; of the second one the last token alone is counted.
class SampleSourceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string bytes;
    for (int id = 10; id < 26; ++id) bytes += {static_cast<char>(id), '\0'};
    ASSERT_OK(WriteFileAtomically(path(), bytes));
    ASSERT_NO_FATAL_FAILURE(WriteIndex(true));
    run_.model.context = 5;
    run_.model.vocab = 100;
    run_.data = {.path = path(), .tokenizer = TokenForm::kTokenFile, .token_bytes = 2};
  }
  std::string path() const { return dir_.File("ids.bin"); }
  // A pair of classes 0, 2, 1 and 0; the first document has a second part from its token 1 on, the third from 5 on.
  void WriteClasses(const std::vector<std::string>& names = {}) {
    ASSERT_OK_AND_ASSIGN(auto writer, DocumentIndexWriter::Create(DocumentIndexPath(path()),
                                                                  {.token_bytes = 2,
                                                                   .tokenizer_fingerprint = std::string(64, 'a'),
                                                                   .has_labels = true,
                                                                   .class_names = names}));
    const struct {
      int64_t num_tokens;
      int32_t label;
      std::optional<int64_t> second_part;
    } documents[] = {{4, 0, 1}, {3, 2, std::nullopt}, {8, 1, 5}, {1, 0, std::nullopt}};
    for (const auto& d : documents) {
      const std::vector<TokenRange> counted = {{0, d.num_tokens}};
      ASSERT_OK(writer->Add(
          {.num_tokens = d.num_tokens, .counted = counted, .label = d.label, .second_part = d.second_part}));
    }
    ASSERT_OK(writer->Finish());
    run_.model.family = ModelFamily::kBert;
    run_.model.num_types = 2;
    run_.model.num_classes = 3;
    run_.data.documents = DocumentMode::kPadded;
  }
  void WriteIndex(bool may_be_cut) {
    ASSERT_OK_AND_ASSIGN(
        auto writer, DocumentIndexWriter::Create(
                         DocumentIndexPath(path()),
                         {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .may_be_cut = may_be_cut}));
    for (const int64_t num_tokens : {4, 3, 8, 1}) {
      const std::vector<TokenRange> counted = {{num_tokens == 3 ? 2 : 0, num_tokens}};
      ASSERT_OK(writer->Add({.num_tokens = num_tokens, .counted = counted, .label = {}, .second_part = {}}));
    }
    ASSERT_OK(writer->Finish());
  }
  VnodeBatch Sample(int64_t sample) const {
    VnodeBatch batch;
    const auto source = SampleSource::Open(run_);
    EXPECT_OK(source.status());
    if (!source.ok()) return batch;
    EXPECT_OK((*source)->Append(sample, 7, batch));
    return batch;
  }

  TempDir dir_;
  RunConfig run_;
};

TEST_F(SampleSourceTest, JoinedSamplesGoOnOverTheEndsOfDocuments) {
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run_));
  EXPECT_EQ(source->num_samples(), 3);
  const VnodeBatch batch = Sample(1);
  EXPECT_THAT(batch.tokens, ElementsAre(15, 16, 17, 18, 19));
  EXPECT_THAT(batch.labels, ElementsAre(16, 17, 18, 19, 20));
  EXPECT_THAT(batch.document_first, IsEmpty());
  EXPECT_THAT(source->files(), ElementsAre(path()));
}

TEST_F(SampleSourceTest, PackedDocumentsStandOneBehindTheOther) {
  run_.data.documents = DocumentMode::kPacked;
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run_));
  EXPECT_EQ(source->num_samples(), 3);
  const VnodeBatch batch = Sample(0);
  EXPECT_THAT(batch.tokens, ElementsAre(10, 11, 12, 14, 15));
  EXPECT_THAT(batch.labels, ElementsAre(11, 12, 13, -100, 16));  // what is counted is what is to be predicted
  EXPECT_THAT(batch.document_first, ElementsAre(0, 0, 0, 3, 3));
  EXPECT_THAT(Sample(1).labels, ElementsAre(18, 19, 20, 21, 22));
  // The rest of the document that was cut, and padding, which is seen by nobody else.
  EXPECT_THAT(Sample(2).tokens, ElementsAre(22, 23, 0, 0, 0));
  EXPECT_THAT(Sample(2).labels, ElementsAre(23, 24, -100, -100, -100));
  EXPECT_THAT(Sample(2).document_first, ElementsAre(0, 0, 2, 2, 2));
  EXPECT_EQ(Sample(0).num_padding, 0);
  EXPECT_EQ(Sample(2).num_padding, 3);
  EXPECT_OK(DocumentEnds(Sample(2).document_first, 5).status());
  EXPECT_THAT(source->files(), ElementsAre(path(), path() + ".docs"));
}

TEST_F(SampleSourceTest, PaddedDocumentsHaveASampleEach) {
  ASSERT_NO_FATAL_FAILURE(WriteIndex(false));
  run_.data.documents = DocumentMode::kPadded;
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run_));
  EXPECT_EQ(source->num_samples(), 3);  // none of the one that has nothing to predict
  EXPECT_THAT(Sample(1).tokens, ElementsAre(14, 15, 0, 0, 0));
  EXPECT_THAT(Sample(1).labels, ElementsAre(-100, 16, -100, -100, -100));
  EXPECT_THAT(Sample(2).labels, ElementsAre(18, 19, 20, 21, 22));  // ended early
}

TEST_F(SampleSourceTest, APieceWithoutACountedLabelIsNoSample) {
  ASSERT_NO_FATAL_FAILURE(WriteIndex(false));
  run_.data.documents = DocumentMode::kPadded;
  run_.model.context = 1;  // the second document ends before the token that is counted
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run_));
  EXPECT_EQ(source->num_samples(), 2);
  EXPECT_THAT(Sample(1).labels, ElementsAre(18));
  const std::optional<DocumentFigures> figures = source->CountDocuments();
  ASSERT_TRUE(figures.has_value());
  EXPECT_EQ(figures->documents, 4);
  EXPECT_EQ(figures->tokens, 16);
  EXPECT_EQ(figures->counted_tokens, 2);
  EXPECT_EQ(figures->ended_early, 3);
  EXPECT_EQ(figures->left_out, 1);
  run_.data.keeps_uncounted = true;
  ASSERT_OK_AND_ASSIGN(source, SampleSource::Open(run_));
  EXPECT_EQ(source->num_samples(), 3);
  EXPECT_THAT(Sample(1).labels, ElementsAre(-100));
}

TEST_F(SampleSourceTest, DocumentsOfWhichNothingIsCountedWithinASampleAreRefused) {
  ASSERT_OK_AND_ASSIGN(auto writer,
                       DocumentIndexWriter::Create(
                           DocumentIndexPath(path()),
                           {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .may_be_cut = false}));
  const std::vector<TokenRange> last = {{7, 8}};
  for (int i = 0; i < 2; ++i)
    ASSERT_OK(writer->Add({.num_tokens = 8, .counted = last, .label = {}, .second_part = {}}));
  ASSERT_OK(writer->Finish());
  run_.data.documents = DocumentMode::kPacked;
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "data.documents: none of the 2 documents of " + path() +
                           " has a token that is counted in its first 5 (model.context); 2 are longer than that"));
  run_.model.context = 7;
  EXPECT_OK(SampleSource::Open(run_));
}

TEST_F(SampleSourceTest, TokensThatAreMaskedAreTheirOwnLabels) {
  run_.model.family = ModelFamily::kBert;
  run_.data.mask = {.share = 0.999999, .token = 99};  // all of them
  ASSERT_OK_AND_ASSIGN(auto joined, SampleSource::Open(run_));
  EXPECT_EQ(joined->num_samples(), 3);
  EXPECT_THAT(Sample(2).tokens, Contains(99));
  EXPECT_THAT(Sample(2).labels, ElementsAre(20, 21, 22, 23, 24));
  run_.data.documents = DocumentMode::kPadded;
  ASSERT_NO_FATAL_FAILURE(WriteIndex(false));
  ASSERT_OK_AND_ASSIGN(auto padded, SampleSource::Open(run_));
  EXPECT_EQ(padded->num_samples(), 4);
  EXPECT_THAT(Sample(1).labels, ElementsAre(-100, -100, 16, -100, -100));
  EXPECT_EQ(Sample(1).tokens[0], 14);  // not counted, and not masked
  EXPECT_THAT(Sample(3).labels, ElementsAre(25, -100, -100, -100, -100));
}

TEST_F(SampleSourceTest, ATextWithAClassIsASampleOfTwoTypesCutWhereItIsTooLong) {
  ASSERT_NO_FATAL_FAILURE(WriteClasses());
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run_));
  EXPECT_EQ(source->num_samples(), 4);
  EXPECT_THAT(Sample(0).tokens, ElementsAre(10, 11, 12, 13, 0));
  EXPECT_THAT(Sample(0).types, ElementsAre(0, 1, 1, 1, 0));
  EXPECT_THAT(Sample(0).document_first, ElementsAre(0, 0, 0, 0, 4));
  EXPECT_THAT(Sample(0).labels, ElementsAre(0));
  EXPECT_THAT(Sample(1).types, ElementsAre(0, 0, 0, 0, 0));
  EXPECT_THAT(Sample(1).labels, ElementsAre(2));
  // Of 5 and 3 tokens 3 and 2 are left, of each text its last one.
  EXPECT_THAT(Sample(2).tokens, ElementsAre(17, 18, 21, 22, 24));
  EXPECT_THAT(Sample(2).types, ElementsAre(0, 0, 0, 1, 1));
  run_.model.context = 4;
  EXPECT_THAT(Sample(2).tokens, ElementsAre(17, 21, 22, 24));
  EXPECT_THAT(Sample(3).tokens, ElementsAre(25, 0, 0, 0));
  LongWork work;
  EXPECT_OK(source->CheckIds(&work));
  EXPECT_EQ(work.Look().done_bytes, work.Look().total_bytes);
  EXPECT_GT(work.Look().total_bytes, 0);
  EXPECT_THAT(source->files(), ElementsAre(path(), path() + ".docs"));
}

TEST_F(SampleSourceTest, ClassesWithNamesHaveTheModelsNumbers) {
  WriteClasses({"negative", "neutral", "positive"});
  EXPECT_THAT(Sample(1).labels, ElementsAre(2));
  run_.model.class_names = {"positive", "negative", "neutral"};
  EXPECT_THAT(Sample(0).labels, ElementsAre(1));
  EXPECT_THAT(Sample(1).labels, ElementsAre(0));
  EXPECT_THAT(Sample(2).labels, ElementsAre(2));
  run_.model.class_names = {"good", "negative", "neutral"};
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "the label \"positive\" of document 1 of " + path() + ", counted from 0, is none"));
}

TEST_F(SampleSourceTest, ClassesByNumberHaveTheModelsNumbersWhereTheseAreItsNames) {
  WriteClasses();
  run_.model.class_names = {"2", "1", "0"};
  EXPECT_THAT(Sample(0).labels, ElementsAre(2));
  EXPECT_THAT(Sample(1).labels, ElementsAre(0));
  run_.model.class_names = {"1", "2", "3"};
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "the label \"0\" of document 0 of " + path()));
}

TEST_F(SampleSourceTest, ClassesThatTheModelDoesNotHaveAreRefused) {
  ASSERT_NO_FATAL_FAILURE(WriteClasses());
  run_.model.num_classes = 2;
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "model.classes: 2, but document 1 of " + path()));
  run_.model.num_classes = 3;
  run_.model.num_types = 1;
  EXPECT_THAT(SampleSource::Open(run_), StatusIs(absl::StatusCode::kInvalidArgument, "model.types: 1, but document 0"));
  ASSERT_NO_FATAL_FAILURE(WriteIndex(false));
  EXPECT_THAT(SampleSource::Open(run_), StatusIs(absl::StatusCode::kInvalidArgument, "have no classes"));
}

TEST_F(SampleSourceTest, ErrorsNameTheUsersFileWhereTheTokensWereMadeOfOne) {
  run_.data.made_from = "lab.tsv";
  const auto refused = [this](const std::string& message) {
    EXPECT_THAT(SampleSource::Open(run_), AllOf(StatusIs(absl::StatusCode::kInvalidArgument, message),
                                                Not(StatusIs(absl::StatusCode::kInvalidArgument, path()))));
  };
  run_.model.context = 100;
  refused("data.path: lab.tsv has 16 tokens");
  ASSERT_NO_FATAL_FAILURE(WriteClasses());
  run_.model.num_classes = 2;
  refused("document 2 of lab.tsv, counted from 1 without those that were left out, is of class 2 (from 0)");
  run_.model.num_classes = 3;
  run_.model.num_types = 1;
  refused("document 1 of lab.tsv, counted from 1 without those that were left out, is a pair of texts");
  run_.model.class_names = {"1", "2", "3"};
  refused("the label \"0\" of document 1 of lab.tsv");
  ASSERT_NO_FATAL_FAILURE(WriteIndex(false));
  run_.model.class_names = {};
  refused("data.path: the documents of lab.tsv have no classes");
}

TEST_F(SampleSourceTest, AClassThatTheModelDoesNotHaveIsNamedByItsLine) {
  ASSERT_NO_FATAL_FAILURE(WriteClasses());
  run_.model.num_classes = 2;
  run_.data.made_from = dir_.File("lab.tsv");
  ASSERT_OK(WriteFileAtomically(run_.data.made_from, "a\t0\nb\t2\nc\t1\n"));
  run_.data.has_table_header = false;
  run_.data.text_column = "1";
  run_.data.label_column = "2";
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "model.classes: 2, but " + run_.data.made_from +
                                                               ", line 2, byte offset 4, is of class 2 (from 0)"));
}

TEST_F(SampleSourceTest, TokensOfTheRunsOwnAreNotTheUsersToMake) {
  run_.data.documents = DocumentMode::kPacked;
  run_.data.made_from = "book.txt";
  const auto refused = [this](const std::string& message) {
    EXPECT_THAT(SampleSource::Open(run_), StatusIs(absl::StatusCode::kInvalidArgument, message));
  };
  ASSERT_OK(WriteFileAtomically(path(), std::string(20, '\1')));
  refused("has 10; remove both, and the next start makes them anew from book.txt");
  ASSERT_OK(WriteFileAtomically(path() + ".docs", "not an index"));
  refused("remove both, and the next start makes them anew from book.txt");
}

TEST_F(SampleSourceTest, WhatIsMissingOrDoesNotMatchIsNamed) {
  run_.data.documents = DocumentMode::kPacked;
  run_.data.token_bytes = 4;
  EXPECT_THAT(SampleSource::Open(run_), StatusIs(absl::StatusCode::kInvalidArgument, "data.token_bytes: 4, but"));
  run_.data.token_bytes = 2;
  ASSERT_OK(WriteFileAtomically(path(), std::string(20, '\1')));
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "is of 16 tokens, but " + path() + " has 10"));
  run_.data.path = dir_.File("other.bin");
  ASSERT_OK(WriteFileAtomically(run_.data.path, "abcd"));
  EXPECT_THAT(SampleSource::Open(run_), StatusIs(absl::StatusCode::kInvalidArgument, "has no index of them beside it"));
  run_.data.documents = DocumentMode::kJoined;
  EXPECT_THAT(SampleSource::Open(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "has 2 tokens; one sample needs 6"));
}

TEST_F(SampleSourceTest, AnIdBeyondTheVocabularyIsFoundBeforeItIsNeeded) {
  run_.model.vocab = 25;
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run_));
  EXPECT_THAT(source->CheckIds(nullptr), StatusIs(absl::StatusCode::kInvalidArgument, "30"));  // the offset
}

TEST_F(SampleSourceTest, WhoWaitsForTheCheckOfAllIdsSeesHowFarItIsAndMayGiveItUp) {
  run_.model.vocab = 100;
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run_));
  LongWork work;
  EXPECT_OK(source->CheckIds(&work));
  EXPECT_EQ(work.Look().what, absl::StrCat("checking the token ids of \"", path(), "\""));
  EXPECT_EQ(work.Look().done_bytes, work.Look().total_bytes);
  EXPECT_GT(work.Look().total_bytes, 0);
  work.Cancel();
  EXPECT_THAT(source->CheckIds(&work), StatusIs(absl::StatusCode::kCancelled, "given up: checking the token ids"));
}

}  // namespace
}  // namespace eps
