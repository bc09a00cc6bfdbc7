#include "common/samples/class_names.h"

#include <cstdint>
#include <filesystem>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/formats/document_index.h"
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
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class ClassNamesTest : public ::testing::Test {
 protected:
  ClassNamesTest() {
    run_.model.family = ModelFamily::kBert;
    run_.model.num_classes = 3;
  }
  // A table of that name, whose labels have these names; none: numbers. A row for each of `labels`.
  DataSource Source(const std::string& table, const std::vector<std::string>& names,
                    const std::vector<int32_t>& labels = {0}) {
    const std::string tokens = dir_.File(table + ".bin");
    const auto writer = DocumentIndexWriter::Create(
        DocumentIndexPath(tokens),
        {.token_bytes = 2, .tokenizer_fingerprint = std::string(64, 'a'), .has_labels = true, .class_names = names});
    EXPECT_OK(writer);
    for (const int32_t label : labels) EXPECT_OK((*writer)->Add({.num_tokens = 1, .label = label}));
    EXPECT_OK((*writer)->Finish());
    return {.data = {.path = tokens, .tokenizer = TokenForm::kTokenFile}};
  }
  // Source gave it.
  absl::StatusOr<std::unordered_map<int32_t, int32_t>> Numbers(const DataSource& source,
                                                               const std::vector<std::string>& names_of_model) {
    const auto index = DocumentIndex::Open(DocumentIndexPath(source.data.path));
    EXPECT_OK(index);
    const std::string name = std::filesystem::path(source.data.path).stem();
    return NumbersOfClasses(**index, names_of_model, {.path = source.data.path, .made_from = dir_.File(name + ".tsv")});
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

TEST_F(ClassNamesTest, NamesThatAModelCannotHaveAreRefusedWithTheFile) {
  EXPECT_THAT(Names({Source("a", {"gr\xfcn", "x", "y"})}),
              StatusIs(kInvalid, R"(a.bin.tsv: model.class_names: "gr\xfcn" is not UTF-8)"));
  EXPECT_THAT(Names({Source("a", {std::string(257, 'n'), "x", "y"})}), StatusIs(kInvalid, "has 257 bytes"));
}

TEST_F(ClassNamesTest, EachClassOfAFileHasTheModelsNumber) {
  const std::vector<std::string> model = {"positive", "negative", "neutral"};
  EXPECT_THAT(Numbers(Source("a", {"negative", "neutral", "positive"}), model),
              IsOkAndHolds(UnorderedElementsAre(Pair(0, 1), Pair(1, 2), Pair(2, 0))));
  EXPECT_THAT(Numbers(Source("b", {"neutral"}), model), IsOkAndHolds(ElementsAre(Pair(0, 2))));
  EXPECT_THAT(Numbers(Source("c", {}, {0, 2}), model), IsOkAndHolds(IsEmpty())) << "numbers, and no name is one";
  EXPECT_THAT(Numbers(Source("d", {"a"}), {}), IsOkAndHolds(IsEmpty())) << "as a run before there were names";
}

TEST_F(ClassNamesTest, AWholeNumberIsANameWhereTheModelCallsAClassByOne) {
  const std::vector<std::string> stars = {"1", "2", "3", "4", "5"};
  EXPECT_THAT(Numbers(Source("a", {}, {5, 1, 5}), stars), IsOkAndHolds(UnorderedElementsAre(Pair(5, 4), Pair(1, 0))));
  EXPECT_THAT(Numbers(Source("b", {}, {2}), {"10", "2", "x"}), IsOkAndHolds(ElementsAre(Pair(2, 1))));
  EXPECT_THAT(Numbers(Source("c", {"x", "2"}), {"10", "2", "x"}),
              IsOkAndHolds(UnorderedElementsAre(Pair(0, 2), Pair(1, 1))));
  EXPECT_THAT(Numbers(Source("d", {}, {1, 2}), {"01", "02"}),
              IsOkAndHolds(UnorderedElementsAre(Pair(1, 0), Pair(2, 1))));
  EXPECT_THAT(Numbers(Source("e", {}, {1, 0}), stars),
              StatusIs(kInvalid, "e.tsv, counted from 1 without those that were left out, is none of"))
      << "and not the first class";
  EXPECT_THAT(Numbers(Source("f", {}, {0, 1}), {"1", "01"}),
              StatusIs(kInvalid, "model.class_names: the label \"0\" of document 1 of"));
  EXPECT_THAT(Numbers(Source("g", {}, {1}), {"1", "01"}),
              StatusIs(kInvalid, "model.class_names: several are the number 1 (1, 01), and the labels of"));
}

TEST_F(ClassNamesTest, ALabelThatIsNoClassIsNamedByItsLine) {
  const auto refused = [&](const std::string& name, const std::string& rows, const DataSource& tokens,
                           const std::vector<std::string>& names_of_model) {
    EXPECT_OK(WriteFileAtomically(dir_.File(name), "text\tlabel\n" + rows));
    const auto index = DocumentIndex::Open(DocumentIndexPath(tokens.data.path));
    return NumbersOfClasses(**index, names_of_model, {.path = tokens.data.path, .made_from = dir_.File(name)}).status();
  };
  EXPECT_THAT(refused("a.tsv", "x\tgut\n\ny\tgut \nz\tgut \n", Source("a", {"gut", "gut "}), {"gut", "schlecht"}),
              StatusIs(kInvalid, "the label \"gut \" of " + dir_.File("a.tsv") +
                                     ", line 4, byte offset 18, is none of the model's classes (gut, schlecht)"));
  EXPECT_THAT(refused("b.tsv", "x\t1\ny\t07\n", Source("b", {}, {1, 7}), {"1", "2"}),
              StatusIs(kInvalid, "the label \"7\" of " + dir_.File("b.tsv") + ", line 3, byte offset 15, is none"));
  EXPECT_THAT(refused("c.tsv", "x\tнет\n", Source("c", {"нет"}), {"да", "\"maybe\""}),
              StatusIs(kInvalid, "the label \"нет\" of " + dir_.File("c.tsv") +
                                     ", line 2, byte offset 11, is none of the model's classes (да, \\\"maybe\\\")"));
}

TEST_F(ClassNamesTest, AnEvaluationWithNamesIsRefusedForAModelThatHasNone) {
  const auto check = [&](const DataSource& source) {
    RunConfig tokens = run_;
    tokens.data = source.data;
    run_.data = {.path_field = "evaluation.path", .path = "held.tsv"};
    return CheckClassesOfEvaluation(run_, tokens);
  };
  EXPECT_OK(check(Source("a", {})));
  EXPECT_THAT(
      check(Source("b", {"no", "yes"})),
      StatusIs(kInvalid, "evaluation.path: the labels of held.tsv are names (no, yes), but the model's classes"));
  run_.model.class_names = {"no", "perhaps", "yes"};
  EXPECT_OK(check(Source("c", {"no", "yes"})));
  run_.model.num_classes = 0;
  run_.model.class_names.clear();
  EXPECT_OK(check({})) << "there are no classes, and nothing is read";
}

}  // namespace
}  // namespace eps
