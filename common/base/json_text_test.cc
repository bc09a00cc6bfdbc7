#include "common/base/json_text.h"

#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

TEST(JsonTextTest, WhatIsNotJsonIsNamedByItsByte) {
  const auto refused = [](absl::string_view text) { return ParseJson(text, 4).status(); };
  EXPECT_THAT(refused("{"), StatusIs(kInvalid, "not valid JSON at byte offset 1: unexpected end of input"));
  EXPECT_THAT(refused("]"), StatusIs(kInvalid, "not valid JSON at byte offset 0: unexpected ']'"));
  EXPECT_THAT(refused("]][[["), StatusIs(kInvalid, "not valid JSON at byte offset 0"));
  EXPECT_THAT(refused("\""), StatusIs(kInvalid, "at byte offset 1: invalid string: missing closing quote"));
  EXPECT_THAT(refused("\"\\"), StatusIs(kInvalid, "not valid JSON at byte offset 2"));
  EXPECT_THAT(refused("{\"a\": }"), StatusIs(kInvalid, "at byte offset 6: unexpected '}'"));
  EXPECT_THAT(refused("{\"a\" 3}"), StatusIs(kInvalid, "at byte offset 5: unexpected number literal; expected ':'"));
  EXPECT_THAT(refused("{\n  \"a\": x\n}"), StatusIs(kInvalid, "not valid JSON at byte offset 9: invalid literal"));
  EXPECT_THAT(refused("[\"a\tb\"]"), StatusIs(kInvalid, "at byte offset 3: invalid string: control character U+0009"));
}

TEST(JsonTextTest, WhatOtherParsersTakeIsNamed) {
  const auto refused = [](absl::string_view text) { return ParseJson(text, 4).status(); };
  EXPECT_THAT(refused("{\"a\": NaN}"), StatusIs(kInvalid, "at byte offset 6: NaN is no number of JSON; write null"));
  EXPECT_THAT(refused("{\"a\":\nNaN}"), StatusIs(kInvalid, "NaN is no number of JSON"));
  EXPECT_THAT(refused("[-Infinity]"), StatusIs(kInvalid, "-Infinity is no number of JSON; write null"));
  EXPECT_THAT(refused("[Infinity]"), StatusIs(kInvalid, "at byte offset 1: Infinity is no number of JSON"));
  EXPECT_THAT(refused("{\"a\": 1,\n}"), StatusIs(kInvalid, "not valid JSON at byte offset 9: a comma before }"));
  EXPECT_THAT(refused("[1, ]"), StatusIs(kInvalid, "at byte offset 4: a comma before ]"));
  EXPECT_THAT(refused("[1] [2]"), StatusIs(kInvalid, "not valid JSON at byte offset 4: unexpected '['"));
  EXPECT_THAT(refused("{} x"), StatusIs(kInvalid, "not valid JSON at byte offset 3: invalid literal"));
  EXPECT_THAT(refused("[\"a\xFF\"]"), StatusIs(kInvalid, "at byte offset 3: invalid string: ill-formed UTF-8 byte"));
  EXPECT_THAT(refused("[1, 1e999]"), StatusIs(kInvalid, "at byte offset 4: the number 1e999 is too large"));
  EXPECT_THAT(refused("-1e999"), StatusIs(kInvalid, "at byte offset 0: the number -1e999 is too large"));
}

TEST(JsonTextTest, AZeroByteIsNoEnd) {
  const auto refused = [](absl::string_view text) { return ParseJson(text, 4).status(); };
  EXPECT_THAT(refused(absl::string_view("{}\0", 3)), StatusIs(kInvalid, "at byte offset 2: a zero byte"));
  EXPECT_THAT(refused(absl::string_view("[1]\0 not JSON", 13)), StatusIs(kInvalid, "at byte offset 3: a zero byte"));
  EXPECT_THAT(refused(absl::string_view("[1, \0\0\0", 7)), StatusIs(kInvalid, "at byte offset 4: a zero byte"));
  EXPECT_THAT(refused(absl::string_view("\0\0", 2)), StatusIs(kInvalid, "at byte offset 0: a zero byte"));
  EXPECT_THAT(refused(absl::string_view("{x}\0", 4)), StatusIs(kInvalid, "at byte offset 1: invalid literal"));
}

TEST(JsonTextTest, AnEmptyTextIsNamedAsSuch) {
  for (const char* text : {"", " \n", "\xEF\xBB\xBF"}) {
    EXPECT_THAT(ParseJson(text, 4), StatusIs(kInvalid, "is empty, must be JSON")) << text;
  }
  EXPECT_OK(ParseJson("\xEF\xBB\xBF{}", 4).status());
}

TEST(JsonTextTest, WhoNamesPlacesInHisOwnWayHasTheSame) {
  const std::optional<JsonError> error = FindJsonError("{\"a\": x}", 4);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->offset_bytes, 6u);
  EXPECT_EQ(error->problem, "not valid JSON");
  EXPECT_EQ(error->reason, "invalid literal");
  EXPECT_EQ(FindJsonError("[[[]]]", 2)->offset_bytes, 2u);
  EXPECT_FALSE(FindJsonError("[[]]", 2).has_value());
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
