#include "common/samples/tokenizer_of_ids.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/formats/document_index_writer.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/example_tokenizers.h"
#include "common/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;

class TokenizerOfIdsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(WriteFileAtomically(dir_.File("tokenizer.json"), ByteLevelJson()));
    run_.model_from = dir_.path();
    run_.data = {.path = dir_.File("ids.bin"), .tokenizer = TokenForm::kTokenFile};
  }
  void WriteIndex(const std::string& fingerprint) { WriteIndexOf(run_.data.path, fingerprint); }
  static void WriteIndexOf(const std::string& path, const std::string& fingerprint) {
    ASSERT_OK_AND_ASSIGN(auto writer,
                         DocumentIndexWriter::Create(DocumentIndexPath(path), {.tokenizer_fingerprint = fingerprint}));
    const std::vector<TokenRange> all = {{0, 4}};
    ASSERT_OK(writer->Add({.num_tokens = 4, .counted = all, .label = {}, .second_part = {}}));
    ASSERT_OK(writer->Finish());
  }

  TempDir dir_;
  RunConfig run_;
};

TEST_F(TokenizerOfIdsTest, IdsOfTheModelsTokenizerAreTakenAndOthersAreNot) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Tokenizer> tokenizer, LoadTokenizer(dir_.path()));
  ASSERT_NO_FATAL_FAILURE(WriteIndex(tokenizer->fingerprint()));
  EXPECT_OK(CheckTokenizerOfIds(run_));
  const std::string bytes = MakeByteTokenizer()->fingerprint();
  ASSERT_NO_FATAL_FAILURE(WriteIndex(bytes));
  EXPECT_THAT(CheckTokenizerOfIds(run_),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "data.path: the ids of " + run_.data.path + " are of another tokenizer (" + bytes + ", says"));
  EXPECT_THAT(CheckTokenizerOfIds(run_), StatusIs(absl::StatusCode::kInvalidArgument, tokenizer->fingerprint()));
  run_.sources = {{.data = run_.data}};
  run_.sources[0].data.path_field = "data.sources[0].path";
  EXPECT_THAT(CheckTokenizerOfIds(run_), StatusIs(absl::StatusCode::kInvalidArgument, "data.sources[0].path"));
}

TEST_F(TokenizerOfIdsTest, WithoutAModelsTokenizerThoseOfTheEvaluationAreThoseOfTheData) {
  run_.model_from.clear();
  run_.evaluation = {.path = dir_.File("held.bin"), .every_steps = 1};
  const std::string bytes = MakeByteTokenizer()->fingerprint(), other(64, 'a');
  ASSERT_NO_FATAL_FAILURE(WriteIndexOf(run_.evaluation.path, bytes));
  EXPECT_OK(CheckTokenizerOfIds(run_)) << "the data's index does not say";
  ASSERT_NO_FATAL_FAILURE(WriteIndex(bytes));
  EXPECT_OK(CheckTokenizerOfIds(run_));
  ASSERT_NO_FATAL_FAILURE(WriteIndex(other));
  EXPECT_THAT(CheckTokenizerOfIds(run_),
              StatusIs(absl::StatusCode::kInvalidArgument, "evaluation.path: the ids of " + run_.evaluation.path));
  EXPECT_THAT(CheckTokenizerOfIds(run_), StatusIs(absl::StatusCode::kInvalidArgument, run_.data.path + " (" + other));
}

TEST_F(TokenizerOfIdsTest, ATokenizerThatIsNotTheModelsIsWarnedOf) {
  const auto warnings = [this] {
    ::testing::internal::CaptureStderr();
    WarnOfOtherTokenizers(run_);
    return ::testing::internal::GetCapturedStderr();
  };
  run_.data.tokenizer = TokenForm::kModel;
  run_.data.tokenizer_path = dir_.path();
  EXPECT_EQ(warnings(), "");
  run_.data.tokenizer_path = dir_.File("tokenizer.json");
  EXPECT_EQ(warnings(), "") << "the same by its file";
  ASSERT_OK(WriteFileAtomically(dir_.File("other.json"), WordPieceJson()));
  run_.sources = {{.data = run_.data}, {.data = run_.data}, {.data = run_.data}};
  run_.sources[1].data.tokenizer_path = run_.sources[2].data.tokenizer_path = dir_.File("other.json");
  const std::string warning = warnings();
  EXPECT_THAT(warning, HasSubstr("WARNING data_tokenizer_is_not_the_models tokenizer_path=" + dir_.File("other.json") +
                                 " model_from=" + dir_.path()));
  EXPECT_EQ(std::count(warning.begin(), warning.end(), '\n'), 1);
  run_.model_from = dir_.File("no tokenizer");
  EXPECT_EQ(warnings(), "");
}

TEST_F(TokenizerOfIdsTest, WhereThereIsNothingToCompareNothingIsSaid) {
  EXPECT_OK(CheckTokenizerOfIds(run_));  // no index
  ASSERT_NO_FATAL_FAILURE(WriteIndex(std::string(64, 'b')));
  run_.data.tokenizer = TokenForm::kModel;
  EXPECT_OK(CheckTokenizerOfIds(run_));
  run_.data.tokenizer = TokenForm::kTokenFile;
  run_.model_from = "";
  EXPECT_OK(CheckTokenizerOfIds(run_));
  run_.model_from = dir_.File("no tokenizer");
  EXPECT_OK(CheckTokenizerOfIds(run_));
}

}  // namespace
}  // namespace eps
