#include "common/corpus/tsv.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

absl::StatusOr<TsvTable> Header(const std::string& text, const TsvColumns& columns = {}) {
  return TsvTable::FromFirstLine({.text = text}, columns);
}

// Text, second text, label of a row under the header.
std::vector<std::string> Row(const std::string& header, const std::string& text, const TsvColumns& columns = {}) {
  const absl::StatusOr<TsvTable> table = Header(header, columns);
  EXPECT_OK(table);
  if (!table.ok()) return {};
  const absl::StatusOr<TsvRow> row = table->Row({.text = text});
  EXPECT_OK(row);
  if (!row.ok()) return {};
  return {std::string(row->text), std::string(row->second_text.value_or("(none)")), std::string(row->label)};
}

using Strings = std::vector<std::string>;

TEST(TsvTest, ColumnsAreChosenByName) {
  EXPECT_EQ(Row("id\tb\ta\tc", "0\tsecond\tfirst\tyes", {.text = "a", .second_text = "b", .label = "c"}),
            (Strings{"first", "second", "yes"}));
  EXPECT_EQ(Row("id\tb\ta\tc", "0\tsecond\tfirst\tyes", {.text = "a", .label = "c"}),
            (Strings{"first", "(none)", "yes"}));
}

TEST(TsvTest, TheTasksOfGlueNeedNoNames) {
  EXPECT_EQ(Row("sentence\tlabel", "good\t1"), (Strings{"good", "(none)", "1"}));
  EXPECT_EQ(Row("index\tsentence1\tsentence2\tlabel", "0\ta\tb\tentailment"), (Strings{"a", "b", "entailment"}));
  EXPECT_EQ(Row("index\tquestion\tsentence\tlabel", "0\ta\tb\tentailment"), (Strings{"a", "b", "entailment"}));
  EXPECT_EQ(Row("id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate", "0\t1\t2\ta\tb\t0"), (Strings{"a", "b", "0"}));
  EXPECT_EQ(Row("\xEF\xBB\xBFQuality\t#1 ID\t#2 ID\t#1 String\t#2 String", "1\t2\t3\ta\tb"), (Strings{"a", "b", "1"}));
}

TEST(TsvTest, QuotesAreNothingSpecial) { EXPECT_EQ(Row("text\tlabel", "\"a\t0"), (Strings{"\"a", "(none)", "0"})); }

TEST(TsvTest, AMissingColumnIsNamedWithThoseThatAreThere) {
  EXPECT_THAT(Header("a\tlabel", {.text = "b"}),
              StatusIs(kInvalid, R"(line 1, byte offset 0: there is no column "b"; its columns are "a", "label")"));
  EXPECT_THAT(Header("a\tlabel"), StatusIs(kInvalid, "which column is the text has to be said"));
  EXPECT_THAT(Header("text\ta"), StatusIs(kInvalid, "which column is the label has to be said"));
  EXPECT_THAT(Header("a\ta\tlabel", {.text = "a"}), StatusIs(kInvalid, "column \"a\" is there twice"));
}

TEST(TsvTest, NamesThatAreNotAsciiAreShownAsTheyAre) {
  EXPECT_THAT(Header("отзыв\tlabel", {.text = "отзыв "}),
              StatusIs(kInvalid, R"(there is no column "отзыв "; its columns are "отзыв", "label")"));
  EXPECT_THAT(Header(std::string(59, 'a') + "я\tlabel", {.text = "b"}),
              StatusIs(kInvalid, "its columns are \"" + std::string(59, 'a') + "...\", \"label\""));
}

TEST(TsvTest, AColumnIsTakenForOneThing) {
  EXPECT_THAT(
      Header("text\tlabel", {.text = "label"}),
      StatusIs(kInvalid, R"(line 1, byte offset 0: column "label" is taken for the text and for the label; its)"));
  EXPECT_THAT(Header("text\tlabel", {.text = "text", .label = "text"}),
              StatusIs(kInvalid, "for the text and for the label"));
  EXPECT_THAT(Header("a\tlabel", {.text = "a", .second_text = "a"}),
              StatusIs(kInvalid, R"(column "a" is taken for the text and for the second text)"));
  EXPECT_THAT(Header("a\tlabel", {.text = "a", .second_text = "label"}),
              StatusIs(kInvalid, R"(column "label" is taken for the second text and for the label)"));
}

TEST(TsvTest, ARowOfAnotherWidthIsNamedByItsPlace) {
  ASSERT_OK_AND_ASSIGN(const TsvTable table, Header("text\tlabel"));
  EXPECT_THAT(table.Row({.text = "a", .number = 5, .offset_bytes = 40}),
              StatusIs(kInvalid, "line 5, byte offset 40: 1 columns, must be 2"));
  EXPECT_THAT(table.Row({.text = "a\tb\tc"}), StatusIs(kInvalid, "3 columns"));
  EXPECT_THAT(table.Row({.text = "a\t"}), StatusIs(kInvalid, "column \"label\": empty"));
}

TEST(TsvTest, ALabelThatIsNotUtf8IsNamedByItsPlaceAndATextMayBe) {
  ASSERT_OK_AND_ASSIGN(const TsvTable table, Header("text\tlabel"));
  EXPECT_THAT(table.Row({.text = "a\tgr\xfcn", .number = 5, .offset_bytes = 40}),
              StatusIs(kInvalid, R"(line 5, byte offset 40: column "label": "gr\xfcn" is not UTF-8; of a table in)"));
  EXPECT_EQ(table.Row({.text = "gr\xfcn\tgr\u00fcn"})->label, "gr\u00fcn");
}

TEST(TsvTableTest, WithoutAHeaderColumnsAreNumbersAndTheFirstLineIsARow) {
  const TextLine line = {.text = "\xEF\xBB\xBFgj04\t1\t\tOur friends."};
  ASSERT_OK_AND_ASSIGN(const TsvTable table,
                       TsvTable::FromFirstLine(line, {.has_header = false, .text = "4", .label = "2"}));
  EXPECT_FALSE(table.has_header());
  ASSERT_OK_AND_ASSIGN(const TsvRow row, table.Row(line));
  EXPECT_EQ(row.text, "Our friends.");
  EXPECT_EQ(row.label, "1");
  ASSERT_OK_AND_ASSIGN(const TsvTable marked,
                       TsvTable::FromFirstLine(line, {.has_header = false, .text = "4", .label = "1"}));
  EXPECT_EQ(marked.Row(line)->label, "gj04") << "without the mark of the file's encoding";
  EXPECT_THAT(
      TsvTable::FromFirstLine(line, {.has_header = false}),
      StatusIs(kInvalid, "which column is the text has to be said; its columns are \"1\", \"2\", \"3\", \"4\""));
  EXPECT_THAT(TsvTable::FromFirstLine(line, {.has_header = false, .text = "5", .label = "2"}),
              StatusIs(kInvalid, "there is no column \"5\""));
}

TEST(TsvTableTest, AScoreIsRefusedAsRegression) {
  EXPECT_THAT(TsvTable::FromFirstLine({.text = "index\tsentence1\tsentence2\tscore"}, {}),
              StatusIs(kInvalid, "regression, as of STS-B, is not trained"));
}

TEST(LabelClassesTest, WholeNumbersAreTheirOwnClasses) {
  LabelClasses classes;
  for (const char* label : {"2", "0", "2"}) ASSERT_OK(classes.Add(label, "here"));
  ASSERT_OK(classes.Finish());
  EXPECT_EQ(classes.num_classes(), 3);
  EXPECT_TRUE(classes.names().empty());
  EXPECT_EQ(classes.ClassOf("2"), 2);
  EXPECT_EQ(classes.ClassOf("1"), std::nullopt);
}

TEST(LabelClassesTest, NamesAreNumberedInOrder) {
  LabelClasses classes;
  for (const char* label : {"neutral", "entailment", "contradiction", "neutral", "7"})
    ASSERT_OK(classes.Add(label, ""));
  ASSERT_OK(classes.Finish());
  EXPECT_EQ(classes.names(), (Strings{"7", "contradiction", "entailment", "neutral"}));
  EXPECT_EQ(classes.ClassOf("neutral"), 3);
  EXPECT_EQ(classes.ClassOf("7"), 0);
  EXPECT_EQ(classes.num_classes(), 4);
}

TEST(LabelClassesTest, ANumberThatIsNoClassIsNamedByItsPlace) {
  for (const char* label : {"3.8", "-1", "65536", "99999999999"}) {
    LabelClasses classes;
    ASSERT_OK(classes.Add("1", "line 2"));
    ASSERT_OK(classes.Add(label, "line 3"));
    EXPECT_THAT(classes.Finish(), StatusIs(kInvalid, std::string("line 3: \"") + label)) << label;
  }
}

}  // namespace
}  // namespace eps
