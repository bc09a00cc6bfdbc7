#include "common/corpus/data_form.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using std::string;

TEST(DataFormTest, TheEndingSaysWhatAFileIsInCapitalsOrNot) {
  for (const char* name : {"a.jsonl", "b/a.JSONL", "a.ndjson", "a.json", "a.Json"}) {
    EXPECT_EQ(DataFormOfName(name), DataForm::kJsonl) << name;
  }
  EXPECT_EQ(DataFormOfName("a.tsv"), DataForm::kTable);
  EXPECT_EQ(DataFormOfName("a.TSV"), DataForm::kTable);
  EXPECT_EQ(DataFormOfName("a.bin"), DataForm::kTokenIds);
  for (const char* name : {"a.txt", "a", "a.jsonl.gz", "jsonl", "a.bin.txt"}) {
    EXPECT_EQ(DataFormOfName(name), DataForm::kText) << name;
  }
}

TEST(DataFormTest, WhatIsPackedOrCompressedIsNamed) {
  const std::vector<std::pair<string, string>> packed = {{"\x1f\x8b\x08 rest", "gzip"},
                                                         {"\x28\xb5\x2f\xfd rest", "zstd"},
                                                         {string("\xfd"
                                                                 "7zXZ\0",
                                                                 6),
                                                          "xz"},
                                                         {"BZh91AY&SY rest", "bzip2"},
                                                         {"PK\x03\x04 rest", "ZIP"},
                                                         {"PAR1 rest", "Parquet"},
                                                         {"ARROW1 rest", "Arrow"},
                                                         {"%PDF-1.7", "PDF"},
                                                         {"7z\xbc\xaf\x27\x1c", "7z"},
                                                         {"\xff\xff\xff\xff rest", "Arrow"}};
  for (const auto& [bytes, name] : packed) {
    for (const DataForm form : {DataForm::kText, DataForm::kJsonl, DataForm::kTable}) {
      EXPECT_THAT(CheckBeginning(form, bytes), StatusIs(kInvalid, name)) << name;
    }
    EXPECT_OK(CheckBeginning(DataForm::kTokenIds, bytes));
    EXPECT_TRUE(HasKnownSignature(bytes)) << name;
  }
  EXPECT_THAT(CheckBeginning(DataForm::kText, "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"),
              StatusIs(kInvalid, "is a pointer of Git LFS, and not the file itself by its first bytes: run `git lfs"));
}

TEST(DataFormTest, JsonIsNoPlainText) {
  for (const char* json : {"{\"text\": 1}", "\n {\n  \"a\": 1}", "[{\"a\": 1}]", "[\n  {", "[\"a\", \"b\"]", "[[1]]"}) {
    EXPECT_THAT(CheckBeginning(DataForm::kText, json), StatusIs(kInvalid, "is JSON by its first bytes")) << json;
    EXPECT_FALSE(HasKnownSignature(json)) << json;
  }
  for (const char* text :
       {"[Illustration]", "[1] Genesis", "{ a brace", "", "[", "{", "text {\"a\": 1}", "PK", "BZh"}) {
    EXPECT_OK(CheckBeginning(DataForm::kText, text)) << text;
  }
}

TEST(DataFormTest, AByteOrderMarkIsNoPartOfWhatItLooksLike) {
  const string mark = "\xef\xbb\xbf";
  EXPECT_THAT(CheckBeginning(DataForm::kText, mark + "{\"text\": 1}"),
              StatusIs(kInvalid, "is JSON by its first bytes"));
  EXPECT_THAT(CheckBeginning(DataForm::kJsonl, mark + "[\n  {\"text\": \"a\"}\n]"),
              StatusIs(kInvalid, "is a JSON array"));
  EXPECT_OK(CheckBeginning(DataForm::kJsonl, mark + "{\"text\": \"a\"}\n"));
  EXPECT_OK(CheckBeginning(DataForm::kText, mark + "text"));
  EXPECT_OK(CheckBeginning(DataForm::kText, mark));
}

TEST(DataFormTest, JsonOfSeveralLinesIsNoJsonl) {
  EXPECT_OK(CheckBeginning(DataForm::kJsonl, "\n{\"text\": \"a\"}\n{}"));
  EXPECT_THAT(CheckBeginning(DataForm::kJsonl, "[\n  {\"text\": \"a\"}\n]"), StatusIs(kInvalid, "is a JSON array"));
  EXPECT_THAT(CheckBeginning(DataForm::kJsonl, "{ \r\n  \"text\": \"a\"}"), StatusIs(kInvalid, "over several lines"));
}

TEST(DataFormTest, TextHasNoZeroBytes) {
  EXPECT_OK(CheckCharacters("\xef\xbb\xbf\xc3\xa9t\xc3\xa9"));
  EXPECT_THAT(CheckCharacters(string("\xff\xfe"
                                     "a\0",
                                     4)),
              StatusIs(kInvalid, "is UTF-16"));
  EXPECT_THAT(CheckCharacters(string("\xfe\xff\0a", 4)), StatusIs(kInvalid, "is UTF-16"));
  EXPECT_THAT(CheckCharacters(string("abc\0", 4)), StatusIs(kInvalid, "the byte at offset 3 is zero"));
}

TEST(DataFormTest, TextIsNoTokenIds) {
  const string text = "In the beginning God created the heaven and the earth. And the earth was\twithout form,\r\n";
  EXPECT_THAT(CheckBeginning(DataForm::kTokenIds, text),
              StatusIs(kInvalid, "is text (\"In the beginning God...\") by its first bytes: token ids are binary"));
  EXPECT_OK(CheckBeginning(DataForm::kTokenIds, text.substr(0, 63)));  // may be a few ids
  string ids = text;
  ids[70] = '\x05';
  EXPECT_OK(CheckBeginning(DataForm::kTokenIds, ids));
}

TEST(DataFormTest, TheBeginningIsAllOfAShortFileAndSomeOfALongOne) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("short"), "abc"));
  EXPECT_THAT(ReadBeginning(dir.File("short")), IsOkAndHolds(string("abc")));
  ASSERT_OK(WriteFileAtomically(dir.File("long"), string(200'000, 'x')));
  EXPECT_THAT(ReadBeginning(dir.File("long")), IsOkAndHolds(string(65536, 'x')));
  EXPECT_THAT(ReadBeginning(dir.File("none")), StatusIs(absl::StatusCode::kNotFound, "none"));
  EXPECT_THAT(ReadBeginning(dir.File("")), StatusIs(kInvalid, "not a regular file"));
}

}  // namespace
}  // namespace eps
