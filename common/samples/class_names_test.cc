#include "common/samples/class_names.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/formats/document_index_writer.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

class ClassNamesTest : public ::testing::Test {
 protected:
  ClassNamesTest() {
    run_.model.family = ModelFamily::kBert;
    run_.model.num_classes = 3;
  }
  // A table of that name, of one row, whose labels have these names; none: numbers.
  DataSource Source(const std::string& table, const std::vector<std::string>& names) {
    const std::string tokens = dir_.File(table + ".bin");
    const auto writer = DocumentIndexWriter::Create(
        DocumentIndexPath(tokens),
        {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .has_labels = true, .class_names = names});
    EXPECT_OK(writer);
    EXPECT_OK((*writer)->Add({.num_tokens = 1, .label = 0}));
    EXPECT_OK((*writer)->Finish());
    return {.data = {.path = tokens, .tokenizer = TokenForm::kTokenFile}};
  }
  absl::StatusOr<std::vector<std::string>> Names(const std::vector<DataSource>& of_tokens) {
    RunConfig tokens = run_;
    tokens.sources = run_.sources = of_tokens;
    for (DataSource& source : run_.sources) source.data.path += ".tsv";
    return ClassNamesOf(run_, tokens);
  }

  TempDir dir_;
  RunConfig run_;
};

TEST_F(ClassNamesTest, WithoutNamesOfTheModelTheyAreThoseOfAllFilesInTheirOrder) {
  EXPECT_THAT(Names({Source("a", {"b", "c"}), Source("b", {"a", "b"})}), IsOkAndHolds(ElementsAre("a", "b", "c")));
  EXPECT_THAT(Names({Source("c", {}), Source("d", {})}), IsOkAndHolds(IsEmpty()));
  run_.model.num_classes = 0;
  EXPECT_THAT(Names({{}}), IsOkAndHolds(IsEmpty())) << "there are no classes, and nothing is read";
}

TEST_F(ClassNamesTest, TheModelsOwnNamesStayAndAFileMayLackSome) {
  run_.model.class_names = {"positive", "negative", "neutral"};
  for (const auto& in_file : {std::vector<std::string>{"negative", "neutral", "positive"}, {"neutral"}, {}}) {
    EXPECT_THAT(Names({Source("a", in_file)}), IsOkAndHolds(ElementsAre("positive", "negative", "neutral")));
  }
}

TEST_F(ClassNamesTest, NamesThatDoNotFitAreRefusedWithTheFile) {
  EXPECT_THAT(Names({Source("a", {"x", "y"})}), StatusIs(kInvalid, "model.classes: 3, but the labels of"));
  EXPECT_THAT(Names({Source("a", {"x", "y"})}), StatusIs(kInvalid, "a.bin.tsv have 2 names (x, y)"));
  EXPECT_THAT(Names({Source("a", {"x", "y", "z"}), Source("b", {})}), StatusIs(kInvalid, "b.bin.tsv numbers"));
  run_.model.class_names = {"positive", "negative", "neutral"};
  EXPECT_THAT(Names({Source("a", {"neutral", "good"})}), StatusIs(kInvalid, "the label \"good\" of "));
  EXPECT_THAT(Names({{.data = {.path = dir_.File("none.bin")}}}),
              StatusIs(absl::StatusCode::kNotFound, "data.documents"));
}

TEST_F(ClassNamesTest, EachClassOfAFileHasTheModelsNumber) {
  const std::vector<std::string> model = {"positive", "negative", "neutral"};
  EXPECT_THAT(NumbersOfClasses({"negative", "neutral", "positive"}, model, ""), IsOkAndHolds(ElementsAre(1, 2, 0)));
  EXPECT_THAT(NumbersOfClasses({"neutral"}, model, ""), IsOkAndHolds(ElementsAre(2)));
  EXPECT_THAT(NumbersOfClasses({}, model, ""), IsOkAndHolds(IsEmpty()));
  EXPECT_THAT(NumbersOfClasses({"a"}, {}, ""), IsOkAndHolds(IsEmpty()));
}

}  // namespace
}  // namespace eps
