#include "common/checkpoint/model_source.h"

#include <filesystem>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/testing.h"
#include "common/formats/model_folder_files.h"
#include "common/model/hf_config.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/example_tokenizers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kMessages[] =
    R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})";

class ModelSourceTest : public ::testing::Test {
 protected:
  ModelSourceTest() {
    Write("model/config.json", "{}");
    Write("model/generation_config.json", "1");
    Write("model/tokenizer.json", "own");
    Write("model/tokenizer_config.json", "own settings");
    Write("model/model.safetensors", "weights");
    Write("model/README.md", "text");
    EXPECT_OK(MakeDirs(run_folder()));
    run_.model_from = dir_.File("model");
    run_.data = {.path = "text.txt", .tokenizer = TokenForm::kModel, .tokenizer_path = run_.model_from};
  }

  void Write(const std::string& name, const std::string& bytes) {
    EXPECT_OK(MakeDirs(DirName(dir_.File(name))));
    EXPECT_OK(WriteFileAtomically(dir_.File(name), bytes));
  }
  std::string run_folder() const { return dir_.File("run"); }
  // A step's folder of the run, which its name makes one.
  std::string Checkpoint() {
    const std::string folder = run_folder() + "/checkpoints/step-00000004";
    EXPECT_OK(MakeDirs(folder));
    return folder;
  }
  // As a run does at its start.
  absl::Status Keep() {
    EPS_ASSIGN_OR_RETURN(const ModelSource source, ReadModelSource(run_));
    return KeepModelSource(source, run_folder());
  }
  // With a manifest, for what is found by the run.
  std::string CheckpointOfRun() {
    const std::string folder = Checkpoint();
    Manifest manifest{.run = run_, .state = StateAt(4), .files = {}};
    for (const absl::string_view name : kSummedFiles) {
      manifest.files[std::string(name)] = {.num_bytes = 1, .sha256 = std::string(64, '0'), .part_crcs = {0}};
    }
    EXPECT_OK(WriteFileAtomically(folder + "/" + kManifestFile, ManifestToJson(manifest)));
    return folder;
  }
  void TrainOn(const std::string& line) {
    Write("chat.jsonl", line + "\n");
    run_.data = {.path = dir_.File("chat.jsonl"),
                 .is_jsonl = true,
                 .tokenizer = TokenForm::kModel,
                 .tokenizer_path = run_.model_from,
                 .chat_template = "chatml",
                 .documents = DocumentMode::kPacked};
  }

  TempDir dir_;
  RunConfig run_ = SmallRun();
};

TEST_F(ModelSourceTest, WhatLiesBesideTheWeightsIsThereWhenTheModelIsGone) {
  ASSERT_OK(Keep());
  std::filesystem::remove_all(run_.model_from);
  ASSERT_OK_AND_ASSIGN(const ModelSource source, FindModelSource(Checkpoint()));
  const ModelFiles want = {{"config.json", "{}"},
                           {"generation_config.json", "1"},
                           {"tokenizer.json", "own"},
                           {"tokenizer_config.json", "own settings"}};
  EXPECT_EQ(source.files, want);
  EXPECT_EQ(source.place, run_folder() + "/source");
  EXPECT_EQ(source.tokenizer_path, source.place);
  EXPECT_EQ(source.chat_template, "");
}

TEST_F(ModelSourceTest, ATokenizerThatTheRunWasToldTakesTheModelsPlaceWithAllOfItsFiles) {
  Write("other/tokenizer.json", "told");
  run_.data = {.path = "text.txt", .tokenizer = TokenForm::kModel, .tokenizer_path = dir_.File("other/tokenizer.json")};
  ASSERT_OK(Keep());
  ASSERT_OK_AND_ASSIGN(const ModelSource source, FindModelSource(Checkpoint()));
  const ModelFiles want = {{"config.json", "{}"}, {"generation_config.json", "1"}, {"tokenizer.json", "told"}};
  EXPECT_EQ(source.files, want);
}

TEST_F(ModelSourceTest, ARunOnConversationsSaysByWhichTemplate) {
  TrainOn(kMessages);
  ASSERT_OK(Keep());
  std::filesystem::remove(run_.data.path);
  EXPECT_EQ(FindModelSource(Checkpoint())->chat_template, "chatml");
  Write("run/source/conversations.json", "{}");
  EXPECT_THAT(FindModelSource(Checkpoint()),
              StatusIs(absl::StatusCode::kInvalidArgument, "conversations.json: chat_template: missing"));
}

TEST_F(ModelSourceTest, JsonlOfTextsIsNoConversation) {
  TrainOn(R"({"text": "a"})");
  ASSERT_OK(Keep());
  EXPECT_EQ(FindModelSource(Checkpoint())->chat_template, "");
}

TEST_F(ModelSourceTest, BadLinesInFrontOfTheConversationsAreSkippedWhereTheRunSkipsThem) {
  TrainOn(std::string("{broken\n") + kMessages);
  run_.data.skips_bad_lines = true;
  ASSERT_OK(Keep());
  EXPECT_EQ(FindModelSource(Checkpoint())->chat_template, "chatml");
}

TEST_F(ModelSourceTest, WhatAnEarlierRunLeftThereIsReplacedWithAllOfItsFiles) {
  ASSERT_OK(Keep());
  Write("second/config.json", R"({"of": "the second"})");
  run_.model_from = run_.data.tokenizer_path = dir_.File("second");
  ASSERT_OK(Keep());
  EXPECT_EQ(FindModelSource(Checkpoint())->files, (ModelFiles{{"config.json", R"({"of": "the second"})"}}));

  run_.model_from.clear();
  ASSERT_OK(Keep());
  EXPECT_FALSE(HoldsModelSource(run_folder()));
}

TEST_F(ModelSourceTest, WhatOnlyAnExportNeedsIsLeftOutWithAWarningWhereItCannotBeRead) {
  ASSERT_OK(MakeDirs(run_.model_from + "/vocab.txt"));
  ::testing::internal::CaptureStderr();
  ASSERT_OK(Keep());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr("WARNING model_file_not_kept file=vocab.txt"), HasSubstr("Is a directory")));
  EXPECT_EQ(FindModelSource(Checkpoint())->files.size(), 4);

  std::filesystem::remove(run_.model_from + "/config.json");
  ASSERT_OK(MakeDirs(run_.model_from + "/config.json"));
  EXPECT_THAT(ReadModelSource(run_), StatusIs(absl::StatusCode::kFailedPrecondition, "model.from: "));
}

TEST_F(ModelSourceTest, OfATokenizerThatIsAFileItIsThatFileAndNoOtherVocabulary) {
  for (const char* name : {"tokenizer.model", "vocab.json", "merges.txt", "tokenizer_config.json"}) {
    Write(std::string("model/") + name, "beside");
  }
  run_.data = {
      .path = "text.txt", .tokenizer = TokenForm::kModel, .tokenizer_path = run_.model_from + "/tokenizer.model"};
  ASSERT_OK(Keep());
  EXPECT_EQ(FindModelSource(Checkpoint())->files, (ModelFiles{{"config.json", "{}"},
                                                              {"generation_config.json", "1"},
                                                              {"tokenizer.model", "beside"},
                                                              {"tokenizer_config.json", "beside"}}));

  Write("model/of_code.json", "by another name");
  run_.data.tokenizer_path = run_.model_from + "/of_code.json";
  ASSERT_OK(Keep());
  ASSERT_OK_AND_ASSIGN(const ModelSource source, FindModelSource(Checkpoint()));
  EXPECT_EQ(source.files.at("tokenizer.json"), "by another name");
  EXPECT_FALSE(source.files.contains("tokenizer.model"));
}

TEST_F(ModelSourceTest, NothingTakesThePlaceOfTheModelsTokenizerWhereTheOtherIsGone) {
  Write("tokenizer.json", "of the folder that it lay in");
  run_.data = {.path = "text.txt", .tokenizer = TokenForm::kModel, .tokenizer_path = dir_.File("gone")};
  ASSERT_OK_AND_ASSIGN(const ModelSource source, ReadModelSource(run_));
  EXPECT_EQ(source.files.at("tokenizer.json"), "own");
  EXPECT_EQ(source.tokenizer_path, run_.model_from);
  EXPECT_EQ(source.place, run_.model_from);
}

TEST_F(ModelSourceTest, WhatAKilledProcessLeftHalfWrittenIsReplaced) {
  Write("run/.tmp-source/vocab.txt", "half");
  ASSERT_OK(Keep());
  EXPECT_FALSE(FindModelSource(Checkpoint())->files.contains("vocab.txt"));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("run/.tmp-source")));
}

TEST_F(ModelSourceTest, ARunOnBytesHasNoTokenizerWhateverItsModelHad) {
  ASSERT_OK(Keep());  // as an earlier version did
  run_.data = {.path = "text.txt"};
  const ModelFiles want = {{"config.json", "{}"}, {"generation_config.json", "1"}};
  ASSERT_OK_AND_ASSIGN(const ModelSource earlier, FindModelSource(CheckpointOfRun()));
  EXPECT_EQ(earlier.files, want);
  EXPECT_EQ(earlier.tokenizer_path, "");
  ASSERT_OK_AND_ASSIGN(const ModelSource source, ReadModelSource(run_));
  EXPECT_EQ(source.files, want);
  EXPECT_EQ(source.tokenizer_path, "");

  const DataConfig text = {.path = "a.txt", .tokenizer = TokenForm::kModel, .tokenizer_path = run_.model_from};
  run_.sources = {{.data = run_.data}, {.data = text}};
  EXPECT_EQ(ReadModelSource(run_)->files.at("tokenizer.json"), "own") << "it makes some of the tokens";
}

TEST_F(ModelSourceTest, IdsOfMarksThatAnotherTokenizerSpellsOtherwiseAreLeftOut) {
  const std::string config = R"({"n_layer": 2, "eos_token_id": [260, 3], "layer_norm_epsilon": 1e-05})";
  Write("model/tokenizer.json", ByteLevelJson());
  Write("model/config.json", config);
  Write("model/generation_config.json", R"({"bos_token_id": 260})");
  // The same with a token more.
  std::string more = ByteLevelJson();
  more.insert(more.find("{\"id\":260"), R"({"id":262,"content":"<pad>","special":true},)");
  Write("more/tokenizer.json", more);
  run_.data.tokenizer_path = dir_.File("more");
  ASSERT_OK_AND_ASSIGN(const ModelSource same, ReadModelSource(run_));
  EXPECT_EQ(same.files.at("tokenizer.json"), more);
  EXPECT_EQ(same.files.at("config.json"), config);
  EXPECT_TRUE(same.files.contains("generation_config.json"));

  Write("other/tokenizer.json", WordPieceJson());
  run_.data.tokenizer_path = dir_.File("other");
  ASSERT_OK_AND_ASSIGN(const ModelSource other, ReadModelSource(run_));
  EXPECT_EQ(other.files.at("tokenizer.json"), WordPieceJson());
  EXPECT_FALSE(other.files.contains("generation_config.json"));
  EXPECT_EQ(nlohmann::json::parse(other.files.at("config.json")),
            nlohmann::json::parse(R"({"n_layer": 2, "layer_norm_epsilon": 1e-05, "bos_token_id": null,
                                      "eos_token_id": null, "pad_token_id": null})"));
}

TEST_F(ModelSourceTest, ARunFromNothingKeepsNothing) {
  run_.data = {.path = "text.txt"};
  run_.model_from.clear();
  ASSERT_OK(Keep());
  EXPECT_FALSE(std::filesystem::exists(run_folder() + "/source"));
  EXPECT_TRUE(FindModelSource(CheckpointOfRun())->files.empty());
}

TEST_F(ModelSourceTest, OfARunThatKeptNothingTheModelsFolderIsTakenIfItIsStillThere) {
  TrainOn(kMessages);
  ASSERT_OK_AND_ASSIGN(const ModelSource source, FindModelSource(CheckpointOfRun()));
  EXPECT_EQ(source.place, run_.model_from);
  EXPECT_EQ(source.files.at("tokenizer.json"), "own");
  EXPECT_EQ(source.chat_template, "chatml");
  std::filesystem::remove_all(run_.model_from);
  EXPECT_TRUE(FindModelSource(CheckpointOfRun())->files.empty());
}

TEST_F(ModelSourceTest, ARunThatBeginsWithAnothersCheckpointHasWhatThatOneKept) {
  TrainOn(kMessages);
  ASSERT_OK(Keep());
  RunConfig next;
  next.model_from = CheckpointOfRun();
  next.data = {.path = "text.txt", .tokenizer = TokenForm::kModel, .tokenizer_path = next.model_from};
  Write("run/checkpoints/step-00000004/config.json", ModelConfigToJson(SmallRun().model));
  nlohmann::json kept = nlohmann::json::parse(ModelConfigToJson(SmallRun().model));
  kept["future"] = 1;
  Write("run/source/config.json", kept.dump());
  ASSERT_OK_AND_ASSIGN(const ModelSource source, ReadModelSource(next));
  EXPECT_EQ(source.place, run_folder() + "/source");
  EXPECT_EQ(nlohmann::json::parse(source.files.at("config.json")), kept);
  EXPECT_EQ(source.files.at("generation_config.json"), "1");
  EXPECT_EQ(source.tokenizer_path, source.place);
  EXPECT_EQ(source.chat_template, "");  // that run's conversations
}

TEST_F(ModelSourceTest, ARunThatBeginsWithAnothersCheckpointHasItsLayersAndAdaptersInWhatThatOneKept) {
  ASSERT_OK(Keep());
  RunConfig next;
  next.model_from = CheckpointOfRun();
  ModelConfig model = SmallRun().model;
  nlohmann::json kept = nlohmann::json::parse(ModelConfigToJson(model));
  kept["future"] = 1;
  Write("run/source/config.json", kept.dump());
  model.num_layers += 1;  // eps grow
  model.lora = {.rank = 2, .alpha = 3};
  Write("run/checkpoints/step-00000004/config.json", ModelConfigToJson(model));
  ASSERT_OK_AND_ASSIGN(const ModelSource source, ReadModelSource(next));
  const nlohmann::json found = nlohmann::json::parse(source.files.at("config.json"));
  EXPECT_EQ(found["n_layer"], model.num_layers);
  EXPECT_EQ(found["eps_lora"]["rank"], 2);
  EXPECT_EQ(found["future"], 1);
}

TEST_F(ModelSourceTest, OfTwoConfigsTheOneThatCannotBeReadIsNamed) {
  ASSERT_OK(Keep());
  RunConfig next;
  next.model_from = CheckpointOfRun();
  const std::string own = next.model_from + "/config.json", kept = run_folder() + "/source/config.json";
  for (const std::string& bad : {own, kept}) {
    for (const std::string& path : {own, kept}) {
      ASSERT_OK(WriteFileAtomically(path, path == bad ? "[]" : ModelConfigToJson(SmallRun().model)));
    }
    EXPECT_THAT(ReadModelSource(next), StatusIs(kInvalid, "model.from: " + bad + ": not a JSON object"));
  }
}

TEST_F(ModelSourceTest, AModelsFolderIsItsOwnSource) {
  ASSERT_OK_AND_ASSIGN(const ModelSource source, FindModelSource(run_.model_from));
  EXPECT_EQ(source.place, run_.model_from);
  EXPECT_EQ(source.files.size(), 4);
}

TEST_F(ModelSourceTest, AFolderCalledSourceBesideAnyOtherCheckpointIsNobodys) {
  Write("source/config.json", "of somebody");
  const std::string folder = dir_.File("kept/step-00000004");
  std::filesystem::create_directories(dir_.File("kept"));
  std::filesystem::rename(CheckpointOfRun(), folder);
  EXPECT_EQ(FindModelSource(folder)->place, run_.model_from);
}

TEST_F(ModelSourceTest, AGrownRunHasItToo) {
  TrainOn(kMessages);
  ASSERT_OK(Keep());
  ASSERT_OK(MakeDirs(dir_.File("grown/checkpoints/step-00000004")));
  ASSERT_OK(CopyModelSource(Checkpoint(), dir_.File("grown")));
  EXPECT_EQ(TreeOf(dir_.File("grown/source")), TreeOf(run_folder() + "/source"));
}

}  // namespace
}  // namespace eps
