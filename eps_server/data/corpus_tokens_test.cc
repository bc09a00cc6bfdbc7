#include "eps_server/data/corpus_tokens.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/checkpoint/testing.h"
#include "common/formats/document_index.h"
#include "common/formats/document_index_writer.h"
#include "common/samples/sample_source.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/example_tokenizers.h"
#include "eps_server/data/data_mark.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

class CorpusTokensTest : public ::testing::Test {
 protected:
  CorpusTokensTest() {
    run_.model.context = 8;
    run_.model.vocab = 256;
    run_.data = {.path = dir_.File("data.jsonl"), .is_jsonl = true, .documents = DocumentMode::kPacked};
  }
  void Write(const std::string& text) { ASSERT_OK(WriteFileAtomically(run_.data.path, text)); }
  std::string folder() const { return dir_.File("data"); }

  TempDir dir_;
  RunConfig run_;
};

TEST_F(CorpusTokensTest, JsonlBecomesATokenFileThatSamplesAreReadFrom) {
  Write("{\"text\": \"abc\"}\n{\"text\": \"defg\"}\n");
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 2));
  EXPECT_EQ(run.data.path, folder() + "/tokens.bin");
  EXPECT_EQ(run.data.documents, DocumentMode::kPacked);
  EXPECT_FALSE(run.data.needs_tokenizing());
  ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run));
  VnodeBatch batch;
  ASSERT_OK(source->Append(0, 0, batch));
  EXPECT_THAT(batch.tokens, ElementsAre('a', 'b', 'd', 'e', 'f', 0, 0, 0));
  EXPECT_THAT(batch.document_first, ElementsAre(0, 0, 2, 2, 2, 5, 5, 5));
}

TEST_F(CorpusTokensTest, BadLinesAreSkippedWhereTheRunSaysSo) {
  Write("{\"text\": 1}\n{\"text\": \"abc\"}\n");
  EXPECT_THAT(WithTokenFile(run_, folder(), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, "line 1, byte offset 0: text: is number"));
  run_.data.skips_bad_lines = true;
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
  EXPECT_THAT(ReadFile(run.data.path), IsOkAndHolds(std::string("a\0b\0c\0", 6)));
}

TEST_F(CorpusTokensTest, ARunThatBeginsReadsItsDataItself) {
  // The edit is in none of the places of a large file that its mark looks at, and leaves its size as it was.
  const std::string line = "{\"text\": \"abc\"}\n";
  std::string lines;
  while (lines.size() < size_t{5} << 20) lines += line;
  Write(lines);
  ASSERT_OK_AND_ASSIGN(const DataMark before, MarkDataFile(run_.data.path));
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 2));
  ASSERT_OK_AND_ASSIGN(const std::string tokens, ReadFile(run.data.path));
  lines.replace(((size_t{66} << 10) / line.size() + 1) * line.size() + 10, 1, "z");
  Write(lines);
  ASSERT_OK_AND_ASSIGN(const DataMark after, MarkDataFile(run_.data.path));
  ASSERT_TRUE(before == after) << "a test of nothing";
  ASSERT_OK(WithTokenFile(run_, folder(), 2));
  ASSERT_OK_AND_ASSIGN(const std::string made, ReadFile(run.data.path));
  EXPECT_EQ(made.size(), tokens.size());
  EXPECT_NE(made, tokens);
}

TEST_F(CorpusTokensTest, WhatSaysWhatAFileWasMadeFromSaysHow) {
  Write("{\"text\": \"abc\"}\n");
  run_.data.counts_all = true;
  ASSERT_OK(WithTokenFile(run_, folder(), 1));
  EXPECT_THAT(*ReadFile(folder() + "/tokens.json"), HasSubstr("\"counts_all\": true"));
}

TEST_F(CorpusTokensTest, ARunThatGoesOnKeepsTheTokensOfDataThatWereMoved) {
  Write("{\"text\": \"abc\"}\n");
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
  const std::string moved = run_.data.path + ".elsewhere.jsonl";
  std::filesystem::rename(run_.data.path, moved);
  run_.data.path = moved;
  ASSERT_OK_AND_ASSIGN(const RunConfig kept, WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
  EXPECT_EQ(kept.data.path, run.data.path);
  EXPECT_FALSE(HoldsNewTokens(folder()));
}

TEST_F(CorpusTokensTest, ARunThatGoesOnMakesDamagedTokensAnew) {
  Write("{\"text\": \"abc\"}\n{\"text\": \"defg\"}\n");
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
  const auto before = TreeOf(folder());
  for (const std::string& path : {run.data.path, DocumentIndexPath(run.data.path)}) {
    ASSERT_OK_AND_ASSIGN(const std::string good, ReadFile(path));
    std::string flipped = good;
    flipped.back() ^= 1;
    for (const std::string& bad : {flipped, good.substr(0, good.size() - 2), std::string()}) {
      ASSERT_OK(WriteFileAtomically(path, bad));
      CaptureStderr();
      ASSERT_OK_AND_ASSIGN(const RunConfig made, WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
      const std::string log = GetCapturedStderr();
      EXPECT_THAT(log, HasSubstr("WARNING data_tokens_damaged token_file=" + run.data.path));
      EXPECT_THAT(log, HasSubstr(path + (bad.size() == good.size() ? " is not as it was written" : " has ")));
      EXPECT_TRUE(HoldsNewTokens(folder()));
      ASSERT_OK(SampleSource::Open(made).status());
      ASSERT_OK(AcceptNewTokens(folder()));
      EXPECT_EQ(TreeOf(folder()), before);
    }
  }
}

TEST_F(CorpusTokensTest, TheTemplateThatAutoTurnedOutToBeIsKnownAlsoOfAFileThatIsKept) {
  Write(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  for (int time = 0; time < 2; ++time) {
    ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
    EXPECT_EQ(run.data.chat_template, "plain");
  }
  Write("{\"text\": \"abc\"}\n");
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
  EXPECT_EQ(run.data.chat_template, "");
}

TEST_F(CorpusTokensTest, ARunThatGoesOnTakesWhatAnEarlierVersionMadeOfTheSame) {
  Write("{\"text\": \"abc\"}\n");
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
  nlohmann::json origin = nlohmann::json::parse(*ReadFile(folder() + "/tokens.json"));
  origin["format"] = 1;
  origin["num_classes"] = 0;
  for (const char* key : {"written_by", "sums", "model_template", "bos", "eos", "skips_bad_lines"}) origin.erase(key);
  const auto be_of_earlier_version = [&] {
    ASSERT_OK(WriteFileAtomically(folder() + "/tokens.json", origin.dump()));
    ASSERT_OK(WriteFileAtomically(run.data.path, "others"));  // three of two bytes
  };
  be_of_earlier_version();
  ASSERT_OK(WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
  EXPECT_THAT(ReadFile(run.data.path), IsOkAndHolds("others"));
  ASSERT_OK(WithTokenFile(run_, folder(), 1, FormerTokens::kReplaced));
  EXPECT_THAT(ReadFile(run.data.path), IsOkAndHolds(std::string("a\0b\0c\0", 6)));

  be_of_earlier_version();
  ASSERT_OK(WriteFileAtomically(run.data.path, "cut"));
  ASSERT_OK(WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
  EXPECT_TRUE(HoldsNewTokens(folder())) << "a length that its index does not have";

  be_of_earlier_version();
  run_.data.counts_all = true;
  ASSERT_OK(WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
  ASSERT_OK(AcceptNewTokens(folder()));
  EXPECT_THAT(ReadFile(run.data.path), IsOkAndHolds(std::string("a\0b\0c\0", 6)));
}

// Of other data: who opens them says whether they are what the run began with.
TEST_F(CorpusTokensTest, ARunThatGoesOnHasItsTokensUntilNewOnesAreAccepted) {
  Write("{\"text\": \"abc\"}\n");
  ASSERT_OK(WithTokenFile(run_, folder(), 1));
  const auto before = TreeOf(folder());
  Write("{\"text\": \"abcd\"}\n");
  for (const bool accepted : {false, true}) {
    ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
    EXPECT_THAT(ReadFile(run.data.path), IsOkAndHolds(std::string("a\0b\0c\0d\0", 8)));
    ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run));
    if (accepted) {
      ASSERT_OK(AcceptNewTokens(folder()));
    } else {
      DropNewTokens(folder());
      EXPECT_EQ(TreeOf(folder()), before);
    }
    VnodeBatch batch;
    ASSERT_OK(source->Append(0, 0, batch));  // it reads on what it has opened
    EXPECT_EQ(batch.tokens[0], 'a');
  }
  EXPECT_EQ(TreeOf(folder()).size(), before.size());
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
  EXPECT_EQ(run.data.path, folder() + "/tokens.bin");
  EXPECT_THAT(ReadFile(run.data.path), IsOkAndHolds(std::string("a\0b\0c\0d\0", 8)));
  ASSERT_OK(AcceptNewTokens(folder()));  // nothing
  EXPECT_EQ(TreeOf(folder()).size(), before.size());
}

TEST_F(CorpusTokensTest, WhatAProcessThatWasKilledMadeIsNeverAccepted) {
  Write("{\"text\": \"abcd\"}\n");
  ASSERT_OK(WithTokenFile(run_, folder(), 1));
  const auto before = TreeOf(folder());
  for (const char* name : {"/new.bin", "/new.bin.docs", "/new.json"})
    ASSERT_OK(WriteFileAtomically(folder() + name, "?"));
  ASSERT_OK(WithTokenFile(run_, folder(), 1, FormerTokens::kKept));
  ASSERT_OK(AcceptNewTokens(folder()));
  EXPECT_EQ(TreeOf(folder()).at("tokens.bin"), before.at("tokens.bin"));
  EXPECT_EQ(TreeOf(folder()).count("new.json"), 0u);
}

TEST_F(CorpusTokensTest, WhatIsThereStaysUntilWhatTakesItsPlaceIsWhole) {
  Write("{\"text\": \"abc\"}\n");
  ASSERT_OK(WithTokenFile(run_, folder(), 1));
  const auto before = TreeOf(folder());
  Write("{\"text\": \"abc\"}\n{\"text\": 7}\n");
  EXPECT_THAT(WithTokenFile(run_, folder(), 1), StatusIs(absl::StatusCode::kInvalidArgument, "line 2"));
  EXPECT_EQ(TreeOf(folder()), before);

  ASSERT_OK(WriteFileAtomically(folder() + "/new.bin", "of a process that was killed"));
  Write("{\"text\": \"abcd\"}\n");
  ASSERT_OK(WithTokenFile(run_, folder(), 1));
  EXPECT_EQ(TreeOf(folder()).size(), before.size());
}

TEST_F(CorpusTokensTest, ATokenFileOrIndexThatIsGoneIsMadeAnew) {
  Write("{\"text\": \"abc\"}\n");
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
  for (const std::string& gone : {run.data.path, DocumentIndexPath(run.data.path)}) {
    ASSERT_TRUE(std::filesystem::remove(gone));
    ASSERT_OK(WithTokenFile(run_, folder(), 1));
    ASSERT_OK_AND_ASSIGN(auto source, SampleSource::Open(run));
    EXPECT_EQ(source->num_samples(), 1);
  }
}

TEST_F(CorpusTokensTest, EachSourceHasAFolderOfItsOwn) {
  Write("{\"text\": \"abc\"}\n");
  run_.sources = {{.data = run_.data, .weight = 1}, {.data = run_.data, .weight = 2}};
  run_.sources[1].data.path = dir_.File("other.jsonl");
  run_.sources[1].data.path_field = "data.sources[1].path";
  EXPECT_THAT(WithTokenFiles(run_, folder(), 1), StatusIs(absl::StatusCode::kNotFound, "data.sources[1].path"));
  ASSERT_OK(WriteFileAtomically(dir_.File("other.jsonl"), "{\"text\": \"defg\"}\n"));
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFiles(run_, folder(), 1));
  EXPECT_EQ(run.sources[0].data.path, folder() + "/0/tokens.bin");
  EXPECT_EQ(run.sources[1].data.path, folder() + "/1/tokens.bin");
  EXPECT_EQ(run.sources[1].weight, 2);
}

TEST_F(CorpusTokensTest, ErrorsNameTheFieldAndLeaveNothing) {
  EXPECT_THAT(WithTokenFile(run_, folder(), 1), StatusIs(absl::StatusCode::kNotFound, "data.path"));
  Write("{\"text\": \"abc\"}\n{\"text\": 7}\n");
  EXPECT_THAT(WithTokenFile(run_, folder(), 1), StatusIs(absl::StatusCode::kInvalidArgument, "line 2"));
  EXPECT_FALSE(std::filesystem::exists(folder() + "/tokens.bin"));
  EXPECT_FALSE(std::filesystem::exists(folder() + "/tokens.json"));
  run_.data.tokenizer = TokenForm::kModel;
  run_.data.tokenizer_path = dir_.File("nowhere");
  EXPECT_THAT(WithTokenFile(run_, folder(), 1), StatusIs(absl::StatusCode::kNotFound, "data.tokenizer_path"));
}

TEST_F(CorpusTokensTest, ATokenizerMayHaveTokensThatTheModelHasNotIfTheDataHaveNone) {
  run_.model.vocab = 128;
  Write("{\"text\": \"abc\"}\n");
  EXPECT_OK(WithTokenFile(run_, folder(), 1));
  run_.data.skips_bad_lines = true;  // none of these
  Write("{\"text\": \"abc\"}\n{\"text\": \"\u00E9\"}\n");
  EXPECT_THAT(
      WithTokenFile(run_, folder(), 1),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "data.path: \"" + run_.data.path +
                   "\": line 2, byte offset 16: the token \"\\xc3\" (195) is beyond the model's vocabulary of 128"));

  ASSERT_OK(WriteFileAtomically(dir_.File("tokenizer.json"), ByteLevelJson()));
  run_.data.tokenizer = TokenForm::kModel;
  run_.data.tokenizer_path = dir_.path();
  Write("{\"text\": \"abc\"}\n");
  run_.model.vocab = 260;  // "<|end|>" is 260
  EXPECT_OK(WithTokenFile(run_, folder(), 1));
  ASSERT_OK(WriteFileAtomically(dir_.File("tokenizer_config.json"), R"({"eos_token": "<|end|>"})"));
  EXPECT_THAT(WithTokenFile(run_, folder(), 1),
              StatusIs(absl::StatusCode::kInvalidArgument, "data.path: eos: the token \"<|end|>\" (260) is beyond"));
  run_.model.vocab = 100;
  EXPECT_THAT(WithTokenFile(run_, folder(), 1), StatusIs(absl::StatusCode::kInvalidArgument,
                                                         "data.tokenizer_path: " + dir_.path() +
                                                             " has ids up to 261, and the model a vocabulary of 100"));
}

TEST_F(CorpusTokensTest, ATokenFileIsLeftAsItIs) {
  run_.data = {.path = dir_.File("ids.bin"), .tokenizer = TokenForm::kTokenFile};
  ASSERT_OK_AND_ASSIGN(const RunConfig run, WithTokenFile(run_, folder(), 1));
  EXPECT_TRUE(run == run_);
  EXPECT_FALSE(std::filesystem::exists(folder()));
}

}  // namespace
}  // namespace eps::server
