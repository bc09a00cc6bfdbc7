#include "common/formats/document_index.h"

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_header.h"
#include "common/formats/document_index_writer.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// 00 01 02 ... 1f
std::string Fingerprint() {
  std::string text;
  for (int i = 0; i < 32; ++i) {
    text.push_back("0123456789abcdef"[i / 16]);
    text.push_back("0123456789abcdef"[i % 16]);
  }
  return text;
}

class DocumentIndexTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<DocumentIndexWriter>> Writer(bool may_be_cut = true, bool has_labels = false) {
    return DocumentIndexWriter::Create(
        path_,
        {.token_bytes = 2, .tokenizer_fingerprint = Fingerprint(), .may_be_cut = may_be_cut, .has_labels = has_labels});
  }

  // The worked example of docs/formats.md.
  void WriteExample() {
    ASSERT_OK_AND_ASSIGN(const auto writer, Writer(false, true));
    const std::vector<TokenRange> first = {{1, 2}, {3, 5}}, second = {{0, 3}};
    ASSERT_OK(writer->Add({.num_tokens = 5, .counted = first, .label = 1, .second_part = 3}));
    ASSERT_OK(writer->Add({.num_tokens = 3, .counted = second, .label = 0}));
    ASSERT_OK(writer->Add({.num_tokens = 2, .label = 258}));
    ASSERT_OK(writer->Finish());
  }

  // The example with `bytes` at `offset`, as Open sees it.
  absl::Status OpenChanged(size_t offset, const std::string& bytes) {
    WriteExample();
    absl::StatusOr<std::string> content = ReadFile(path_);
    EXPECT_OK(content);
    content->replace(offset, bytes.size(), bytes);
    EXPECT_OK(WriteFileAtomically(path_, *content));
    return DocumentIndex::Open(path_).status();
  }

  size_t NumFiles() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(dir_.path())) ++count;
    return count;
  }

  TempDir dir_;
  std::string path_ = DocumentIndexPath(dir_.File("tokens.bin"));
};

TEST_F(DocumentIndexTest, LiesBesideItsTokenFile) { EXPECT_EQ(path_, dir_.File("tokens.bin.docs")); }

TEST_F(DocumentIndexTest, WhatIsWrittenIsRead) {
  WriteExample();
  ASSERT_OK_AND_ASSIGN(const auto index, DocumentIndex::Open(path_));
  EXPECT_EQ(index->num_tokens(), 10);
  EXPECT_EQ(index->token_bytes(), 2);
  EXPECT_EQ(index->num_documents(), 3);
  EXPECT_EQ(index->tokenizer_fingerprint(), Fingerprint());
  EXPECT_FALSE(index->may_be_cut());
  const std::vector<int64_t> firsts = {0, 5, 8, 10}, parts = {3, 3, 2}, labels = {1, 0, 258};
  for (int64_t i = 0; i <= 3; ++i) EXPECT_EQ(index->first_token(i), firsts[i]);
  for (int64_t i = 0; i < 3; ++i) {
    EXPECT_EQ(index->second_part(i), parts[i]);
    EXPECT_EQ(index->label(i), labels[i]);
  }
  std::string counted;
  for (int64_t i = 0; i < 10; ++i) counted += index->is_counted(i) ? '1' : '0';
  EXPECT_EQ(counted, "0101111100");
}

TEST_F(DocumentIndexTest, ItsHeaderAloneSaysHowTheFileIsToBeRead) {
  ASSERT_NO_FATAL_FAILURE(WriteExample());
  EXPECT_THAT(ReadDocumentIndexHeader(path_),
              IsOkAndHolds(DocumentIndexHeader{.token_bytes = 2,
                                               .num_tokens = 10,
                                               .num_documents = 3,
                                               .may_be_cut = false,
                                               .counts_all = false,
                                               .tokenizer_fingerprint = Fingerprint()}));
  ASSERT_OK(WriteFileAtomically(path_, "EPSD"));
  EXPECT_THAT(ReadDocumentIndexHeader(path_), StatusIs(kInvalid, "4 bytes, must be at least the 64"));
  EXPECT_THAT(ReadDocumentIndexHeader(dir_.File("none")), StatusIs(absl::StatusCode::kNotFound, "none"));
}

TEST_F(DocumentIndexTest, ItsBytesAreThoseOfTheWorkedExample) {
  WriteExample();
  const std::string expected(
      "EPSD\x01\x00\x02\x0e"
      "\x0a\x00\x00\x00\x00\x00\x00\x00"
      "\x03\x00\x00\x00\x00\x00\x00\x00"
      "\x00\x00\x00\x00\x00\x00\x00\x00"
      "\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f"
      "\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f"
      "\x00\x00\x00\x00\x00\x00\x00\x00"
      "\x05\x00\x00\x00\x00\x00\x00\x00"
      "\x08\x00\x00\x00\x00\x00\x00\x00"
      "\x0a\x00\x00\x00\x00\x00\x00\x00"
      "\xfa\x00\x00\x00\x00\x00\x00\x00"
      "\x01\x00\x00\x00\x00\x00\x00\x00"
      "\x02\x01\x00\x00\x00\x00\x00\x00"
      "\x03\x00\x00\x00\x03\x00\x00\x00"
      "\x02\x00\x00\x00\x00\x00\x00\x00",
      136);
  EXPECT_THAT(ReadFile(path_), IsOkAndHolds(expected));
}

TEST_F(DocumentIndexTest, WhereAllIsCountedThereIsNoBitmap) {
  ASSERT_OK_AND_ASSIGN(const auto writer, Writer());
  const std::vector<TokenRange> all = {{0, 100}};
  ASSERT_OK(writer->Add({.num_tokens = 100, .counted = all}));
  ASSERT_OK(writer->Finish());
  EXPECT_EQ(std::filesystem::file_size(path_), 64u + 16u);
  ASSERT_OK_AND_ASSIGN(const auto index, DocumentIndex::Open(path_));
  EXPECT_TRUE(index->may_be_cut());
  EXPECT_TRUE(index->is_counted(99));
  EXPECT_EQ(index->num_counted(3, 99), 96);
  EXPECT_EQ(index->label(0), std::nullopt);
  EXPECT_EQ(index->second_part(0), 100);
}

TEST_F(DocumentIndexTest, ManyDocumentsGoThroughMoreThanOneBuffer) {
  ASSERT_OK_AND_ASSIGN(const auto writer, Writer(false, true));
  constexpr int64_t kDocuments = 200'000;
  for (int64_t i = 0; i < kDocuments; ++i) {
    const std::vector<TokenRange> counted = {{i % 3, 20}};
    ASSERT_OK(writer->Add({.num_tokens = 20 + i % 7, .counted = counted, .label = i % 5, .second_part = 1 + i % 19}));
  }
  ASSERT_OK(writer->Finish());
  ASSERT_OK_AND_ASSIGN(const auto index, DocumentIndex::Open(path_));
  ASSERT_EQ(index->num_documents(), kDocuments);
  for (int64_t i = 0; i < kDocuments; ++i) {
    const int64_t first = index->first_token(i);
    ASSERT_EQ(index->first_token(i + 1) - first, 20 + i % 7);
    ASSERT_EQ(index->label(i), i % 5);
    ASSERT_EQ(index->second_part(i), 1 + i % 19);
    for (int64_t t = 0; t < 20 + i % 7; ++t) ASSERT_EQ(index->is_counted(first + t), t >= i % 3 && t < 20) << i;
    ASSERT_EQ(index->num_counted(first, first + 20 + i % 7), 20 - i % 3) << i;
    ASSERT_EQ(index->num_counted(first + 4, first + 4 + i % 9), i % 9) << i;
  }
}

TEST_F(DocumentIndexTest, NothingIsThereBeforeTheEnd) {
  {
    ASSERT_OK_AND_ASSIGN(const auto writer, Writer());
    ASSERT_OK(writer->Add({.num_tokens = 4}));
    ASSERT_OK(writer->Complete());
    EXPECT_FALSE(std::filesystem::exists(path_));
  }
  EXPECT_EQ(NumFiles(), 0u);
}

TEST_F(DocumentIndexTest, WhatMakesNoSenseIsNotWritten) {
  const std::vector<TokenRange> beyond = {{0, 6}}, overlap = {{0, 3}, {2, 4}}, empty = {{2, 2}};
  const auto add = [&](bool has_labels, const DocumentIndexWriter::Document& document) {
    const auto writer = Writer(true, has_labels);
    EXPECT_OK(writer);
    return (*writer)->Add(document);
  };
  EXPECT_THAT(add(false, {.num_tokens = 0}), StatusIs(kInvalid, "document 0"));
  EXPECT_THAT(add(false, {.num_tokens = 5, .counted = beyond}), StatusIs(kInvalid, "[0, 6)"));
  EXPECT_THAT(add(false, {.num_tokens = 5, .counted = overlap}), StatusIs(kInvalid, "[2, 4) after 3"));
  EXPECT_THAT(add(false, {.num_tokens = 5, .counted = empty}), StatusIs(kInvalid, "[2, 2)"));
  EXPECT_THAT(add(false, {.num_tokens = 5, .label = 1}), StatusIs(kInvalid, "label"));
  EXPECT_THAT(add(true, {.num_tokens = 5}), StatusIs(kInvalid, "label: missing"));
  EXPECT_THAT(add(true, {.num_tokens = 5, .label = -1}), StatusIs(kInvalid, "-1"));
  EXPECT_THAT(add(false, {.num_tokens = 5, .second_part = 5}), StatusIs(kInvalid, "second_part: 5"));
  ASSERT_OK_AND_ASSIGN(const auto none, Writer());
  EXPECT_THAT(none->Finish(), StatusIs(kInvalid, "no documents"));
  EXPECT_THAT(DocumentIndexWriter::Create(path_, {.token_bytes = 3, .tokenizer_fingerprint = Fingerprint()}),
              StatusIs(kInvalid, "token_bytes: 3"));
  EXPECT_THAT(DocumentIndexWriter::Create(path_, {.token_bytes = 2, .tokenizer_fingerprint = "abc"}),
              StatusIs(kInvalid, "\"abc\""));
}

TEST_F(DocumentIndexTest, BadBytesAreNamedByFieldOffsetAndValue) {
  using std::string;
  EXPECT_OK(OpenChanged(0, "E"));
  EXPECT_THAT(OpenChanged(0, "X"), StatusIs(kInvalid, "tokens.bin.docs\": magic (offset 0): 0x44535058"));
  EXPECT_THAT(OpenChanged(4, "\x02"), StatusIs(kInvalid, "format (offset 4): 2, must be 1"));
  EXPECT_THAT(OpenChanged(6, "\x03"), StatusIs(kInvalid, "token_bytes (offset 6): 3"));
  EXPECT_THAT(OpenChanged(7, "\x1e"), StatusIs(kInvalid, "flags (offset 7): 30"));
  EXPECT_THAT(OpenChanged(8, string(8, '\0')), StatusIs(kInvalid, "num_tokens (offset 8): 0"));
  EXPECT_THAT(OpenChanged(8, string(8, '\xff')), StatusIs(kInvalid, "num_tokens (offset 8): 18446744073709551615"));
  EXPECT_THAT(OpenChanged(16, "\x0b"), StatusIs(kInvalid, "num_documents (offset 16): 11, must be in [1, 10]"));
  EXPECT_THAT(OpenChanged(24, "\x01"), StatusIs(kInvalid, "136 bytes, must be 144"));
  EXPECT_THAT(OpenChanged(24, string(8, '\xff')), StatusIs(kInvalid, "class_names_bytes (offset 24): 1844674407370"));
  EXPECT_THAT(OpenChanged(64, "\x01"), StatusIs(kInvalid, "first_tokens[0] (offset 64): 1, must be 0"));
  EXPECT_THAT(OpenChanged(80, "\x05"), StatusIs(kInvalid, "first_tokens[2] (offset 80): 5, must be above 5"));
  EXPECT_THAT(OpenChanged(88, "\x0b"), StatusIs(kInvalid, "first_tokens[3] (offset 88): 11, must be 10"));
  EXPECT_THAT(OpenChanged(97, "\x04"), StatusIs(kInvalid, "counted (offset 97): 4"));
  EXPECT_THAT(OpenChanged(98, "\x01"), StatusIs(kInvalid, "filling after counted (offset 98): 1"));
  EXPECT_THAT(OpenChanged(108, string(4, '\xff')), StatusIs(kInvalid, "labels[1] (offset 108): -1"));
  EXPECT_THAT(OpenChanged(116, "\x01"), StatusIs(kInvalid, "filling after labels (offset 116): 1"));
  EXPECT_THAT(OpenChanged(124, "\x04"), StatusIs(kInvalid, "second_parts[1] (offset 124): 4, must be in [1, 3]"));
  EXPECT_THAT(OpenChanged(120, string(1, '\0')), StatusIs(kInvalid, "second_parts[0] (offset 120): 0"));
  EXPECT_THAT(OpenChanged(135, "\x01"), StatusIs(kInvalid, "filling after second_parts (offset 135): 1"));
  EXPECT_THAT(OpenChanged(136, "x"), StatusIs(kInvalid, "137 bytes, must be 136"));
}

TEST_F(DocumentIndexTest, NamesOfClassesStandBehindTheRest) {
  const auto write = [&](const std::vector<std::string>& names, int32_t label, bool has_labels = true) -> absl::Status {
    EPS_ASSIGN_OR_RETURN(const auto writer, DocumentIndexWriter::Create(path_, {.token_bytes = 2,
                                                                                .tokenizer_fingerprint = Fingerprint(),
                                                                                .has_labels = has_labels,
                                                                                .class_names = names}));
    EPS_RETURN_IF_ERROR(writer->Add({.num_tokens = 2, .label = label}));
    return writer->Finish();
  };
  const std::vector<std::string> names = {"no", "very much so", "7"};
  ASSERT_OK(write(names, 2));
  ASSERT_OK_AND_ASSIGN(const std::string content, ReadFile(path_));
  EXPECT_EQ(content.substr(content.size() - 24), "no\nvery much so\n7\n" + std::string(6, '\0'));
  {
    ASSERT_OK_AND_ASSIGN(const auto index, DocumentIndex::Open(path_));
    EXPECT_EQ(index->class_names(), names);
  }
  const auto open = [&](std::string changed) {
    EXPECT_OK(WriteFileAtomically(path_, changed));
    return DocumentIndex::Open(path_).status();
  };
  std::string bad = content;
  bad[content.size() - 7] = 'x';
  EXPECT_THAT(open(bad), StatusIs(kInvalid, "class_names (offset "));
  bad = content;
  bad[content.size() - 8] = '\n';
  EXPECT_THAT(open(bad), StatusIs(kInvalid, "class_names[2] (offset "));
  bad = content;
  bad.replace(content.find("no\n"), 3, "n o");
  EXPECT_THAT(open(bad), StatusIs(kInvalid, "labels[0] (offset 88): 2, must be below 2"));
  bad = content;
  bad.back() = 'x';
  EXPECT_THAT(open(bad), StatusIs(kInvalid, "filling after class_names"));
  EXPECT_THAT(write(names, 3), StatusIs(kInvalid, "label: 3, must be below 3"));
  EXPECT_THAT(write({"a", ""}, 0), StatusIs(kInvalid, "class_names: \"\""));
  EXPECT_THAT(write({"a\nb"}, 0), StatusIs(kInvalid, "class_names: \"a\\nb\""));
  EXPECT_THAT(write(names, 0, false), StatusIs(kInvalid, "class_names: given without labels"));
}

TEST_F(DocumentIndexTest, AFileThatIsCutShortIsRefusedWhereverItIsCut) {
  WriteExample();
  ASSERT_OK_AND_ASSIGN(const std::string whole, ReadFile(path_));
  for (size_t length = 0; length < whole.size(); ++length) {
    ASSERT_OK(WriteFileAtomically(path_, whole.substr(0, length)));
    EXPECT_THAT(DocumentIndex::Open(path_), StatusIs(kInvalid, "tokens.bin.docs")) << length;
  }
}

TEST_F(DocumentIndexTest, AMissingFileIsNamed) {
  EXPECT_THAT(DocumentIndex::Open(path_), StatusIs(absl::StatusCode::kNotFound, "tokens.bin.docs"));
}

}  // namespace
}  // namespace eps
