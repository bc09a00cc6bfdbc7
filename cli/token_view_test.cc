#include "cli/token_view.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/formats/document_index_writer.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

TEST(TokenViewTest, AProgressLineLeavesOutWhatHasNoRoom) {
  const TokenizeProgress progress{
      .bytes_done = 35 << 20, .bytes_total = 100 << 20, .documents = 12, .tokens = 3456, .seconds = 10};
  EXPECT_EQ(TokenizeProgressLine(progress, 200),
            "[#######-------------]  35%  35.0 MiB of 100.0 MiB  12 documents  3456 tokens  3.7 MB/s  eta 0:19");
  EXPECT_EQ(TokenizeProgressLine(progress, 79),
            " 35%  35.0 MiB of 100.0 MiB  12 documents  3456 tokens  3.7 MB/s  eta 0:19");
  EXPECT_EQ(TokenizeProgressLine(progress, 30), " 35%  3.7 MB/s  eta 0:19");
  EXPECT_EQ(TokenizeProgressLine(progress, 3), " 35");
  EXPECT_EQ(TokenizeProgressLine({}, 30), "100%  0.0 MB/s  eta -:--");
}

TEST(TokenViewTest, ASummaryTellsWhatWasLeftOut) {
  const TokenizeReport report{
      .counts = {.documents = 2, .tokens = 10, .counted_tokens = 4, .longest_document = 7, .empty_documents = 1},
      .source_bytes = 1 << 20,
      .token_bytes = 2,
      .seconds = 2,
      .notes = {.specials_as_text = 5,
                .replaced_surrogates = 6,
                .replaced_bytes = 8,
                .first_replaced = "\"a.txt\": byte offset 3",
                .skipped_lines = 7,
                .skip_reasons = {"\"a.jsonl\": line 2"}},
      .chat_template = "chatml",
      .chat_template_reason = "as told",
      .num_classes = 2,
      .class_names = {"no", "y\x1b"}};
  EXPECT_EQ(
      TokenizeSummary(report, "a.bin"),
      "a.bin: 2 documents, 10 tokens of 2 bytes, 4 of them counted; the longest document has 7\n"
      "1.0 MiB in 2.000 s, 0.5 MB/s\n"
      "template: chatml, as told\n"
      "classes: 2: 0 no, 1 y?\n"
      "left out: 1 empty document, 0 without a token that is counted\n"
      "5 special tokens spelled in text were read as text; --special-tokens as-tokens makes them tokens\n"
      "6 halves of surrogate pairs became U+FFFD\n"
      "8 bytes that are not UTF-8 became U+FFFD, the first at \"a.txt\": byte offset 3; of text in Latin-1, `iconv -f "
      "ISO-8859-1 -t UTF-8` makes UTF-8\n"
      "skipped: 7 bad lines, of which the first are\n    \"a.jsonl\": line 2\n");
}

TEST(TokenViewTest, OneIsNoPlural) {
  EXPECT_EQ(TokenizeProgressLine({.bytes_done = 1, .bytes_total = 2, .documents = 1, .tokens = 1, .seconds = 1}, 60),
            " 50%  1 B of 2 B  1 document  1 token  0.0 MB/s  eta 0:01");
  const TokenizeReport report{.counts = {.documents = 1, .tokens = 10, .counted_tokens = 10}, .token_bytes = 2};
  EXPECT_EQ(TokenizeSummary(report, "a.bin").rfind("a.bin: 1 document, 10 tokens of 2 bytes, all counted", 0), 0u);
}

class ShowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK(WriteFileAtomically(path_, std::string("q\0\n\0a\0b\0\x1b\0x\0", 12)));
    ASSERT_OK_AND_ASSIGN(const auto writer, DocumentIndexWriter::Create(DocumentIndexPath(path_),
                                                                        {.token_bytes = 2,
                                                                         .tokenizer_fingerprint = bytes_->fingerprint(),
                                                                         .may_be_cut = false,
                                                                         .has_labels = true}));
    const std::vector<TokenRange> counted = {{2, 4}};
    ASSERT_OK(writer->Add({.num_tokens = 4, .counted = counted, .label = 3, .second_part = 2}));
    ASSERT_OK(writer->Add({.num_tokens = 2, .label = 0}));
    ASSERT_OK(writer->Finish());
    ASSERT_OK_AND_ASSIGN(index_, DocumentIndex::Open(DocumentIndexPath(path_)));
    ASSERT_OK_AND_ASSIGN(file_, TokenFile::Open(path_, 2));
  }

  TempDir dir_;
  std::string path_ = dir_.File("a.bin");
  std::unique_ptr<Tokenizer> bytes_ = MakeByteTokenizer();
  std::unique_ptr<DocumentIndex> index_;
  std::unique_ptr<TokenFile> file_;
};

TEST_F(ShowTest, CountedTokensAreMarked) {
  EXPECT_THAT(ShowDocument(*file_, *index_, 0, bytes_.get(), 100),
              IsOkAndHolds("document 0: 4 tokens from 0 on, 2 counted, class 3, second part from its token 2 on\n"
                           "    q\n    {+ab+}\n"));
  EXPECT_THAT(ShowDocument(*file_, *index_, 0, nullptr, 3),
              IsOkAndHolds("document 0: 4 tokens from 0 on, 2 counted, class 3, second part from its token 2 on\n"
                           "    113 10 +97\n    ... and 1 tokens more\n"));
}

TEST_F(ShowTest, SpecialTokensStandInBraces) {
  // As bytes, of which b is a special one.
  class WithSpecial final : public Tokenizer {
   public:
    explicit WithSpecial(const Tokenizer& bytes) : bytes_(bytes) {}

   private:
    std::vector<int32_t> Encode(absl::string_view text, Specials specials) const override {
      return bytes_.Encode(text, specials);
    }
    std::string Decode(absl::Span<const int32_t> ids, bool skip) const override { return bytes_.Decode(ids, skip); }
    int64_t vocab() const override { return bytes_.vocab(); }
    std::optional<int32_t> TokenId(absl::string_view token) const override { return bytes_.TokenId(token); }
    bool IsSpecial(int32_t id) const override { return id == 'b'; }
    int64_t CountSpecials(absl::string_view) const override { return 0; }
    const std::string& fingerprint() const override { return bytes_.fingerprint(); }
    const Tokenizer& bytes_;
  };
  const WithSpecial tokenizer(*bytes_);
  EXPECT_THAT(ShowDocument(*file_, *index_, 0, &tokenizer, 100),
              IsOkAndHolds("document 0: 4 tokens from 0 on, 2 counted, class 3, second part from its token 2 on\n"
                           "    q\n    {+a{b}+}\n"));
}

TEST_F(ShowTest, NothingCommandsATerminal) {
  EXPECT_THAT(ShowDocument(*file_, *index_, 1, bytes_.get(), 100),
              IsOkAndHolds("document 1: 2 tokens from 4 on, 0 counted, class 0\n    ?x\n"));
}

TEST_F(ShowTest, AnotherTokenizerIsRefused) {
  class Other final : public Tokenizer {
    std::vector<int32_t> Encode(absl::string_view, Specials) const override { return {}; }
    std::string Decode(absl::Span<const int32_t>, bool) const override { return ""; }
    int64_t vocab() const override { return 256; }
    std::optional<int32_t> TokenId(absl::string_view) const override { return std::nullopt; }
    bool IsSpecial(int32_t) const override { return false; }
    int64_t CountSpecials(absl::string_view) const override { return 0; }
    const std::string& fingerprint() const override { return fingerprint_; }
    const std::string fingerprint_ = std::string(64, '0');
  };
  const Other other;
  EXPECT_THAT(ShowDocument(*file_, *index_, 0, &other, 100),
              StatusIs(absl::StatusCode::kInvalidArgument, "fingerprint"));
}

}  // namespace
}  // namespace eps::cli
