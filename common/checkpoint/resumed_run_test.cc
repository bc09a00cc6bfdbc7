#include "common/checkpoint/resumed_run.h"

#include <filesystem>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/testing.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kConfig[] =
    R"({"model_type":"gpt2","n_layer":2,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":300})";
constexpr char kRun[] = R"(
model { from: "model" }  data { path: "a.txt" }  optimizer { schedule { peak: 0.1 } }  steps: 9)";

// A run from a folder with a tokenizer, which has made a checkpoint and keeps what it began with in out/source.
class ResumedRunTest : public ::testing::Test {
 protected:
  ResumedRunTest() {
    for (const std::string& folder : {std::string("model"), std::string("out/source")}) {
      Write(folder + "/config.json", kConfig);
      Write(folder + "/tokenizer.json", "{}");
    }
    Write("a.txt", "text");
    Begin(kRun);
  }

  void Write(const std::string& name, const std::string& bytes) {
    EXPECT_OK(MakeDirs(DirName(dir_.File(name))));
    EXPECT_OK(WriteFileAtomically(dir_.File(name), bytes));
  }
  void Remove(const std::string& name) { std::filesystem::remove_all(dir_.File(name)); }

  // The run of that text has made a checkpoint.
  void Begin(const std::string& run) {
    Write("run.textproto", run);
    const absl::StatusOr<RunConfig> loaded = LoadRunConfig(dir_.File("run.textproto"), {});
    ASSERT_OK(loaded);
    run_ = *loaded;
    Manifest manifest{.run = run_, .state = StateAt(4), .files = {}};
    for (const absl::string_view name : kSummedFiles) {
      manifest.files[std::string(name)] = {.num_bytes = 1, .sha256 = std::string(64, '0'), .part_crcs = {0}};
    }
    Write("out/checkpoints/step-00000004/manifest.json", ManifestToJson(manifest));
    Write("out/checkpoints/latest", "step-00000004\n");
  }
  absl::StatusOr<RunConfig> Resume() { return LoadRunOfFolder(dir_.File("out"), dir_.File("run.textproto"), {}); }
  absl::StatusOr<RunConfig> Readable() { return WithKeptTokenizer(dir_.File("out"), run_); }

  TempDir dir_;
  RunConfig run_;
};

TEST_F(ResumedRunTest, WhereTheModelsFolderIsGoneItIsTheSameRunByWhatItKeeps) {
  EXPECT_THAT(FindGoneSources(run_), IsEmpty());
  Remove("model");
  ASSERT_OK_AND_ASSIGN(const RunConfig resumed, Resume());
  EXPECT_EQ(resumed, run_);
  EXPECT_THAT(FindGoneSources(run_), ElementsAre(dir_.File("model")));
  ASSERT_OK_AND_ASSIGN(const RunConfig readable, Readable());
  EXPECT_EQ(readable.data.tokenizer_path, dir_.File("out/source"));
}

TEST_F(ResumedRunTest, AFolderThatIsEmptyIsGone) {
  Remove("model/config.json");
  Remove("model/tokenizer.json");
  EXPECT_THAT(Resume(), IsOkAndHolds(run_));
  EXPECT_THAT(FindGoneSources(run_), ElementsAre(dir_.File("model")));
}

TEST_F(ResumedRunTest, AFolderThatIsThereGoesBeforeWhatIsKept) {
  Write("out/source/config.json", "{}");
  Write("model/config.json",
        R"({"model_type":"gpt2","n_layer":3,"n_embd":8,"n_head":2,"n_positions":5,"vocab_size":300})");
  ASSERT_OK_AND_ASSIGN(const RunConfig resumed, Resume());
  EXPECT_THAT(DifferencesThatMatter(run_, resumed), ElementsAre("model.layers: was 2, now 3"));
  EXPECT_THAT(Readable(), IsOkAndHolds(run_));
}

TEST_F(ResumedRunTest, FilesThatLieElsewhereMakeNoOtherRunWhereTheDataAreKnownByTheirContent) {
  Write("there/a.txt", "text");
  Write("there/model/config.json", kConfig);
  Write("there/model/tokenizer.json", "{}");
  Write("there/run.textproto", kRun);
  ASSERT_OK_AND_ASSIGN(const RunConfig moved, LoadRunOfFolder(dir_.File("out"), dir_.File("there/run.textproto"), {}));
  EXPECT_EQ(moved.data.path, dir_.File("there/a.txt"));
  Manifest manifest{.run = run_, .state = StateAt(4), .files = {}};
  manifest.state.data = {.num_bytes = 4, .sha256 = std::string(64, '0')};
  // A model's content is not known: it has not moved as long as it is there.
  EXPECT_THAT(DifferencesThatMatter(manifest, moved),
              ElementsAre(HasSubstr("model.from: was "), HasSubstr("data.tokenizer_path: was ")));
  Remove("model");
  EXPECT_THAT(DifferencesThatMatter(manifest, moved), IsEmpty());
  RunConfig other = moved;
  other.model_from = dir_.File("out");  // which holds no model
  EXPECT_THAT(DifferencesThatMatter(manifest, other), ElementsAre(HasSubstr("model.from: was ")));
  other = moved;
  other.data.path = dir_.File("nowhere");
  EXPECT_THAT(DifferencesThatMatter(manifest, other), ElementsAre(HasSubstr("data.path: was ")));
  Remove("a.txt");  // nor is the former: whoever needs the data says so
  EXPECT_THAT(DifferencesThatMatter(manifest, other), IsEmpty());
  other = moved;
  other.steps = 10;
  EXPECT_THAT(DifferencesThatMatter(manifest, other), ElementsAre("steps: was 9, now 10"));
  manifest.state.data = {};
  EXPECT_THAT(
      DifferencesThatMatter(manifest, moved),
      ElementsAre(HasSubstr("model.from: was "), HasSubstr("data.path: was "), HasSubstr("data.tokenizer_path")));
}

TEST_F(ResumedRunTest, OfSeveralSourcesEachMayLieElsewhere) {
  Write("b.txt", "more");
  Begin(R"(model { from: "model" }  optimizer { schedule { peak: 0.1 } }  steps: 9
           data { sources { path: "a.txt" weight: 2 } sources { path: "b.txt" weight: 1 } })");
  Manifest manifest{.run = run_, .state = StateAt(4), .files = {}};
  manifest.state.data = {.num_bytes = 4, .sha256 = std::string(64, '0')};
  Write("there/b.txt", "more");
  RunConfig moved = run_;
  moved.sources[1].data.path = dir_.File("there/b.txt");
  EXPECT_THAT(DifferencesThatMatter(manifest, moved), IsEmpty());
  moved.sources.pop_back();
  EXPECT_FALSE(DifferencesThatMatter(manifest, moved).empty());
}

TEST_F(ResumedRunTest, WhereNothingIsKeptEitherBothPlacesAreNamed) {
  Remove("model");
  Remove("out/source");
  const absl::Status config = Resume().status(), tokenizer = Readable().status();
  EXPECT_EQ(config.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(config.message()),
              AllOf(HasSubstr("run.textproto: model.from: "), HasSubstr("/model/config.json"),
                    HasSubstr("/out/source/config.json"), HasSubstr("put one of the two back")));
  EXPECT_EQ(tokenizer.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(tokenizer.message()),
              AllOf(HasSubstr("data.tokenizer_path: there is no tokenizer in " + dir_.File("model")),
                    HasSubstr(dir_.File("out/source"))));
}

TEST_F(ResumedRunTest, WithoutACheckpointItIsANewRunAndNeedsTheFolder) {
  Remove("model");
  Remove("out/checkpoints");
  EXPECT_THAT(Resume(), StatusIs(absl::StatusCode::kNotFound, "/model/config.json"));
  EXPECT_THAT(Readable(), IsOkAndHolds(run_));
}

TEST_F(ResumedRunTest, OfTwoTokenizersThatAreGoneOnlyTheFirstIsKept) {
  Write("told/tokenizer.json", "{}");
  std::string text = kRun;
  text.replace(text.find(R"(path: "a.txt")"), 13,
               R"(sources { path: "a.txt" tokenizer_path: "told" } sources { path: "a.txt" })");
  Begin(text);
  Remove("told");
  ASSERT_OK_AND_ASSIGN(const RunConfig readable, Readable());
  EXPECT_EQ(readable.sources[0].data.tokenizer_path, dir_.File("out/source"));
  EXPECT_EQ(readable.sources[1].data.tokenizer_path, dir_.File("model"));
  EXPECT_THAT(FindGoneSources(run_), ElementsAre(dir_.File("told")));

  Remove("model");
  EXPECT_THAT(Readable(), StatusIs(absl::StatusCode::kNotFound, "data.sources[1].tokenizer_path: "));
  EXPECT_THAT(FindGoneSources(run_), ElementsAre(dir_.File("model"), dir_.File("told")));
}

TEST_F(ResumedRunTest, WhatTheModelsTokenizerDecidesStaysWhenItIsGone) {
  std::string text = kRun;
  text.replace(text.find(R"(path: "a.txt")"), 13, R"(sources { path: "a.txt" } special_tokens: AS_TOKENS)");
  Begin(text);
  Remove("model");
  EXPECT_THAT(Resume(), IsOkAndHolds(run_));
}

}  // namespace
}  // namespace eps
