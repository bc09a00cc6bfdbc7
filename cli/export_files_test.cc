#include "cli/export_files.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/checkpoint/model_source.h"
#include "common/formats/model_folder_files.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "common/tokenizer/example_tokenizers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

using nlohmann::json;

constexpr int kBegin = 300, kEnd = 301, kEndOfTurn = 304;

// With the special tokens of Llama 3.
std::string TokenizerJson() {
  json tokenizer = json::parse(ByteLevelJson());
  int id = kBegin;
  for (const char* special :
       {"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}) {
    tokenizer["added_tokens"].push_back({{"id", id++}, {"content", special}, {"special", true}});
  }
  return tokenizer.dump();
}

class ExportFilesTest : public ::testing::Test {
 protected:
  // A base model's folder with these files beside its tokenizer, after a run on conversations.
  absl::StatusOr<ExportFiles> Export(ModelFiles files, const std::string& chat_template = "auto") {
    files["tokenizer.json"] = TokenizerJson();
    for (const auto& [name, bytes] : files) EXPECT_OK(WriteFileAtomically(dir_.File(name), bytes));
    return FilesOfExport(
        {.place = dir_.path(), .files = files, .tokenizer_path = dir_.path(), .chat_template = chat_template});
  }
  static json Of(const ExportFiles& result, const char* name) { return json::parse(result.files.at(name)); }

  TempDir dir_;
};

TEST_F(ExportFilesTest, TheEndOfATurnGoesBeforeWhatEndedATextAndEverythingElseStays) {
  ASSERT_OK_AND_ASSIGN(
      const ExportFiles result,
      Export({{"config.json", R"({"eos_token_id": 301})"},
              {"generation_config.json", R"({"temperature": 0.6, "eos_token_id": 301, "bos_token_id": 300})"},
              {"tokenizer_config.json", R"({"model_max_length": 9, "eos_token": "<|end_of_text|>"})"},
              {"special_tokens_map.json", R"({"eos_token": {"content": "<|end_of_text|>", "lstrip": false}})"}}));
  EXPECT_EQ(Of(result, "generation_config.json"),
            json::parse(R"({"temperature": 0.6, "eos_token_id": [304, 301], "bos_token_id": 300})"));
  EXPECT_EQ(Of(result, "tokenizer_config.json"), json::parse(R"({"model_max_length": 9, "eos_token": "<|eot_id|>"})"));
  EXPECT_EQ(Of(result, "special_tokens_map.json"),
            json::parse(R"({"eos_token": {"content": "<|eot_id|>", "lstrip": false}})"));
  EXPECT_EQ(result.config.eos_token_id, kEndOfTurn);
  EXPECT_FALSE(result.files.contains("config.json"));
  EXPECT_EQ(result.end_of_answer, "<|eot_id|> (304)");
  EXPECT_EQ(result.notes.size(), 1);
}

TEST_F(ExportFilesTest, WithoutAGenerationConfigThereIsOneWithTheTokensOfTheConfig) {
  ASSERT_OK_AND_ASSIGN(const ExportFiles result,
                       Export({{"config.json", R"({"bos_token_id": 300, "eos_token_id": [301, 302]})"}}));
  EXPECT_EQ(Of(result, "generation_config.json"),
            json::parse(R"({"bos_token_id": 300, "eos_token_id": [304, 301, 302]})"));
  EXPECT_FALSE(result.files.contains("tokenizer_config.json"));
}

TEST_F(ExportFilesTest, ANewGenerationConfigHasThePaddingOfTheConfigToo) {
  ASSERT_OK_AND_ASSIGN(const ExportFiles result, Export({{"config.json", R"({"pad_token_id": 7})"}}));
  EXPECT_EQ(Of(result, "generation_config.json"), json::parse(R"({"eos_token_id": [304], "pad_token_id": 7})"));
}

TEST_F(ExportFilesTest, NumbersOfManyDigitsStayAsTheyAreWritten) {
  ASSERT_OK_AND_ASSIGN(
      const ExportFiles result,
      Export({{"config.json", "{}"},
              {"generation_config.json", R"({"temperature": 0.60, "top_p": 1.0E0})"},
              {"tokenizer_config.json",
               R"({"model_max_length": 1000000000000000019884624838656, "eos_token": "<|end_of_text|>"})"}}));
  EXPECT_EQ(result.files.at("tokenizer_config.json"),
            R"({"model_max_length": 1000000000000000019884624838656, "eos_token": "<|eot_id|>"})");
  EXPECT_EQ(result.files.at("generation_config.json"),
            "{\"temperature\": 0.60, \"top_p\": 1.0E0,\n  \"eos_token_id\": [304]}");
}

TEST_F(ExportFilesTest, WithoutATemplateThatCanBeToldFilesStayAsTheyAreAndANoteSaysSo) {
  const ModelFiles files = {{"config.json", "{}"}, {"chat_template.jinja", "of a kind that is not known"}};
  ASSERT_OK_AND_ASSIGN(const ExportFiles result, Export(files));
  EXPECT_EQ(result.files.at("chat_template.jinja"), files.at("chat_template.jinja"));
  EXPECT_FALSE(result.files.contains("generation_config.json"));
  ASSERT_EQ(result.notes.size(), 1);
  EXPECT_NE(result.notes[0].find("without a template"), std::string::npos);
}

TEST_F(ExportFilesTest, ABaseModelGetsTheTemplateOfTheRunAndOneThatHasItKeepsItsOwn) {
  ASSERT_OK_AND_ASSIGN(const ExportFiles base, Export({{"config.json", "{}"}}));
  EXPECT_NE(base.files.at("chat_template.jinja").find("<|start_header_id|>user"), std::string::npos);

  const std::string own = "{{ '<|start_header_id|>' }} <|end_header_id|> <|eot_id|>";
  ASSERT_OK_AND_ASSIGN(const ExportFiles instruct,
                       Export({{"config.json", "{}"}, {"tokenizer_config.json", json{{"chat_template", own}}.dump()}}));
  EXPECT_FALSE(instruct.files.contains("chat_template.jinja"));
  EXPECT_EQ(Of(instruct, "tokenizer_config.json")["chat_template"], own);
}

TEST_F(ExportFilesTest, ATemplateThatTheRunWasToldGoesBeforeAnotherOfTheModel) {
  ASSERT_OK_AND_ASSIGN(
      const ExportFiles result,
      Export({{"config.json", "{}"}, {"chat_template.jinja", "<|start_header_id|> of another kind"}}, "plain"));
  EXPECT_NE(result.files.at("chat_template.jinja").find("### User:"), std::string::npos);
  EXPECT_EQ(result.config.eos_token_id, kEnd);
  // Older programs look elsewhere first.
  ASSERT_OK_AND_ASSIGN(const ExportFiles inlined,
                       Export({{"config.json", "{}"},
                               {"tokenizer_config.json",
                                json{{"a", 1}, {"chat_template", "<|start_header_id|> of another kind"}}.dump()},
                               {"chat_template.json", json{{"chat_template", "of a third"}}.dump()}},
                              "plain"));
  EXPECT_EQ(Of(inlined, "tokenizer_config.json")["chat_template"], inlined.files.at("chat_template.jinja"));
  EXPECT_EQ(Of(inlined, "tokenizer_config.json")["a"], 1);
  EXPECT_EQ(Of(inlined, "chat_template.json")["chat_template"], inlined.files.at("chat_template.jinja"));
}

TEST_F(ExportFilesTest, WhatACheckpointsConfigDoesNotKnowTheTokenizerDoes) {
  ASSERT_OK_AND_ASSIGN(const ExportFiles result,
                       Export({{"config.json", R"({"bos_token_id": null, "eos_token_id": null})"}}, ""));
  EXPECT_EQ(result.config.bos_token_id, kBegin);
  EXPECT_EQ(result.config.eos_token_id, kEnd);
  ASSERT_OK_AND_ASSIGN(const ExportFiles known,
                       Export({{"config.json", R"({"bos_token_id": null, "eos_token_id": 7})"}}, ""));
  EXPECT_EQ(known.config.bos_token_id, std::nullopt);  // of a folder that knows
  EXPECT_EQ(known.config.eos_token_id, std::nullopt);
}

TEST_F(ExportFilesTest, OfAnotherRunEveryFileIsAsItWas) {
  const ModelFiles files = {{"generation_config.json", R"({"eos_token_id":301})"},
                            {"tokenizer_config.json", R"({"eos_token":"<|end_of_text|>"})"}};
  ModelFiles with_config = files;
  with_config["config.json"] = "{}";
  ASSERT_OK_AND_ASSIGN(const ExportFiles result, Export(with_config, ""));
  for (const auto& [name, bytes] : files) EXPECT_EQ(result.files.at(name), bytes) << name;
  EXPECT_FALSE(result.files.contains("chat_template.jinja"));
  EXPECT_EQ(result.config.eos_token_id, std::nullopt);
  EXPECT_TRUE(result.notes.empty());
}

TEST_F(ExportFilesTest, WithoutAConfigTheTokensAreTheTokenizers) {
  ASSERT_OK_AND_ASSIGN(const ExportFiles result, Export({}, ""));
  EXPECT_EQ(result.config.source, "");
  EXPECT_EQ(result.config.bos_token_id, kBegin);
  EXPECT_EQ(result.config.eos_token_id, kEnd);
}

TEST_F(ExportFilesTest, AFileThatCannotBeChangedIsNamed) {
  EXPECT_THAT(Export({{"config.json", "{}"}, {"generation_config.json", "[1]"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "generation_config.json: not a JSON object"));
  EXPECT_THAT(Export({{"config.json", "{}"}, {"generation_config.json", "{"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "generation_config.json"));
}

TEST(ExportFilesWithoutATokenizerTest, NothingIsLookedFor) {
  ASSERT_OK_AND_ASSIGN(const ExportFiles result, FilesOfExport({}));
  EXPECT_TRUE(result.files.empty());
  EXPECT_EQ(result.config.bos_token_id, std::nullopt);
}

TEST(CheckExportFilesTest, AFileOfSettingsThatIsNoJsonObjectIsNamed) {
  const ModelFiles good = {{"config.json", "{}"},
                           {"generation_config.json", R"({"temperature": 0.6})"},
                           {"tokenizer_config.json", "{}"},
                           {"special_tokens_map.json", "{}"},
                           {"chat_template.json", "{}"},
                           {"chat_template.jinja", "{{ messages }}"},
                           {"tokenizer.model", "of any kind"}};
  EXPECT_OK(CheckExportFiles(good));
  for (const auto& [name, bytes] : good) {
    ModelFiles files = good;
    files[name] = "";
    EXPECT_THAT(CheckExportFiles(files),
                StatusIs(absl::StatusCode::kInvalidArgument, name + ": empty; mend or remove the file"));
    if (bytes.front() != '{' || name == "chat_template.jinja") continue;
    files[name] = "{\"a\": ";
    EXPECT_THAT(CheckExportFiles(files), StatusIs(absl::StatusCode::kInvalidArgument, name + ": not valid JSON"));
    EXPECT_THAT(CheckExportFiles(files), StatusIs(absl::StatusCode::kInvalidArgument, "; mend or remove the file"));
    files[name] = "[]";
    EXPECT_THAT(CheckExportFiles(files), StatusIs(absl::StatusCode::kInvalidArgument, name + ": not a JSON object"));
  }
}

}  // namespace
}  // namespace eps::cli
