#include "common/tokenizer/tokenizer_settings.h"

#include <string>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

class TokenizerSettingsTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, const std::string& content) {
    EXPECT_OK(WriteFileAtomically(dir_.File(name), content));
  }
  absl::StatusOr<TokenizerSettings> Read() const { return ReadTokenizerSettings(dir_.path()); }

  TempDir dir_;
};

TEST_F(TokenizerSettingsTest, AFolderWithoutFilesSaysNothing) {
  ASSERT_OK_AND_ASSIGN(const TokenizerSettings settings, Read());
  EXPECT_EQ(settings.chat_template, "");
  EXPECT_EQ(settings.bos_token, std::nullopt);
  EXPECT_EQ(settings.eos_token, std::nullopt);
}

TEST_F(TokenizerSettingsTest, FilesBesideAFileOfATokenizerAreRead) {
  Write("tokenizer_config.json", R"({"chat_template": "x"})");
  ASSERT_OK_AND_ASSIGN(const TokenizerSettings settings, ReadTokenizerSettings(dir_.File("tokenizer.json")));
  EXPECT_EQ(settings.chat_template, "x");
  EXPECT_EQ(settings.chat_template_place, dir_.path() + "/tokenizer_config.json: chat_template");
}

TEST_F(TokenizerSettingsTest, OfNamedTemplatesTheDefaultIsTaken) {
  Write("tokenizer_config.json",
        R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  ASSERT_OK_AND_ASSIGN(const TokenizerSettings settings, Read());
  EXPECT_EQ(settings.chat_template, "d");
}

TEST_F(TokenizerSettingsTest, AFileOfItsOwnGoesBeforeTheConfigsTemplate) {
  Write("chat_template.json", R"({"chat_template": "json"})");
  ASSERT_OK_AND_ASSIGN(TokenizerSettings settings, Read());
  EXPECT_EQ(settings.chat_template, "json");
  Write("tokenizer_config.json", R"({"chat_template": "config"})");
  ASSERT_OK_AND_ASSIGN(settings, Read());
  EXPECT_EQ(settings.chat_template, "config");
  Write("chat_template.jinja", "jinja");
  ASSERT_OK_AND_ASSIGN(settings, Read());
  EXPECT_EQ(settings.chat_template, "jinja");
  EXPECT_EQ(settings.chat_template_place, dir_.path() + "/chat_template.jinja");
}

TEST_F(TokenizerSettingsTest, TokensAreStringsObjectsOrNone) {
  Write("special_tokens_map.json", R"({"bos_token": "<other>", "eos_token": {"content": "</s>", "lstrip": false}})");
  Write("tokenizer_config.json", R"({"bos_token": null})");
  ASSERT_OK_AND_ASSIGN(const TokenizerSettings settings, Read());
  EXPECT_EQ(settings.bos_token, "");
  EXPECT_EQ(settings.eos_token, "</s>");
}

TEST_F(TokenizerSettingsTest, ABosThatIsNotPutInFrontKeepsItsSpelling) {
  Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": false})");
  ASSERT_OK_AND_ASSIGN(const TokenizerSettings settings, Read());
  EXPECT_EQ(settings.bos_token, "<s>");
  EXPECT_EQ(settings.adds_bos, false);
}

TEST_F(TokenizerSettingsTest, WhetherTextBeginsWithBosIsSaidByAFlagAClassOrBothTokensBeingOne) {
  const auto adds_bos = [this](const std::string& config) {
    Write("tokenizer_config.json", config);
    const absl::StatusOr<TokenizerSettings> settings = Read();
    EXPECT_OK(settings);
    return settings.ok() ? settings->adds_bos : std::nullopt;
  };
  EXPECT_EQ(adds_bos(R"({"bos_token": "<s>", "eos_token": "</s>"})"), std::nullopt);
  EXPECT_EQ(adds_bos(R"({"bos_token": "<s>", "tokenizer_class": "GPT2Tokenizer"})"), std::nullopt);
  EXPECT_EQ(adds_bos(R"({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizer"})"), true);
  EXPECT_EQ(adds_bos(R"({"bos_token": "<s>", "tokenizer_class": "LlamaTokenizerFast", "add_bos_token": false})"),
            false);
  EXPECT_EQ(adds_bos(R"({"bos_token": "<end>", "eos_token": "<end>"})"), false);
  EXPECT_EQ(adds_bos(R"({"bos_token": "<end>", "eos_token": "<end>", "add_bos_token": true})"), true);
}

TEST_F(TokenizerSettingsTest, WhatIsWrongIsNamedByFileAndKey) {
  const auto refused = [this](const std::string& config) {
    Write("tokenizer_config.json", config);
    return Read().status();
  };
  using absl::StatusCode;
  EXPECT_THAT(refused("{"), StatusIs(StatusCode::kInvalidArgument, "tokenizer_config.json: not valid JSON"));
  EXPECT_THAT(refused(R"({"chat_template": 3})"),
              StatusIs(StatusCode::kInvalidArgument, "tokenizer_config.json: chat_template: 3, must be a string"));
  EXPECT_THAT(refused(R"({"chat_template": [{"name": "default"}]})"),
              StatusIs(StatusCode::kInvalidArgument, "chat_template[0].template: missing"));
  EXPECT_THAT(refused(R"({"eos_token": 2})"), StatusIs(StatusCode::kInvalidArgument, "eos_token: 2"));
}

}  // namespace
}  // namespace eps
