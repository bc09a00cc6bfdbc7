#include "common/base/json_text.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(JsonTextTest, ADocumentIsReadUpToItsDepth) {
  ASSERT_OK_AND_ASSIGN(const nlohmann::json document, ParseJson(R"({"a": [{"b": 1}], "c": [2]})", 3));
  EXPECT_EQ(document["a"][0]["b"], 1);
  EXPECT_THAT(ParseJson(R"({"a": [{"b": 1}], "c": [2]})", 2), StatusIs(kInvalid, "nested too deeply: more than 2"));
  EXPECT_OK(ParseJson("7", 0).status());
}

TEST(JsonTextTest, BracketsInTextsDoNotNest) {
  ASSERT_OK_AND_ASSIGN(const nlohmann::json document, ParseJson(R"(["[[[{{{", "\"[[[[", "\\"])", 1));
  EXPECT_EQ(document[0], "[[[{{{");
  EXPECT_EQ(document[1], "\"[[[[");
  EXPECT_EQ(document[2], "\\");
}

TEST(JsonTextTest, WhatIsNotJsonIsRefused) {
  for (const char* text : {"", "{", "]", "]][[[", "\"", "\"\\", "{\"a\": }", "[1] [2]"}) {
    EXPECT_THAT(ParseJson(text, 4), StatusIs(kInvalid, "not valid JSON")) << text;
  }
}

TEST(JsonTextTest, ATextOfBracketsAloneIsRefusedWhateverItsLength) {
  const int levels = 1000000;
  EXPECT_THAT(ParseJson(std::string(levels, '['), 32), StatusIs(kInvalid, "nested too deeply"));
  EXPECT_THAT(ParseJson(absl::StrCat("{\"a\":", std::string(levels, '['), std::string(levels, ']'), "}"), 32),
              StatusIs(kInvalid, "nested too deeply"));
}

TEST(JsonTextTest, ALongListOfObjectsTakesNoQuadraticTime) {
  std::string text = "[{}";
  for (int i = 0; i < 300000; ++i) text += ",{}";
  EXPECT_OK(ParseJson(text + "]", 2).status());
}

}  // namespace
}  // namespace eps
