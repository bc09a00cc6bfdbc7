#include "common/corpus/jsonl.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

TextLine Line(const std::string& text) { return {.text = text, .number = 7, .offset_bytes = 1000}; }

absl::StatusOr<JsonlRecord> Parse(const std::string& text, JsonlKind kind) {
  return ParseJsonlRecord(Line(text), kind);
}

TEST(JsonlTest, TheFirstLineShowsTheKind) {
  EXPECT_THAT(FindJsonlKind(Line(R"({"text": "a"})")), IsOkAndHolds(JsonlKind::kText));
  EXPECT_THAT(FindJsonlKind(Line(R"({"id": 1, "messages": []})")), IsOkAndHolds(JsonlKind::kMessages));
  EXPECT_THAT(FindJsonlKind(Line(R"({"instruction": "a", "output": "b", "text": "c"})")),
              IsOkAndHolds(JsonlKind::kInstruction));
  EXPECT_THAT(FindJsonlKind(Line(R"({"prompt": "a", "response": "b"})")), IsOkAndHolds(JsonlKind::kPrompt));
  EXPECT_THAT(FindJsonlKind(Line(R"({"conversations": [], "id": 3})")),
              StatusIs(kInvalid, R"(line 7, byte offset 1000: keys: "conversations", "id", must be "text")"));
  EXPECT_THAT(FindJsonlKind(Line("{}")), StatusIs(kInvalid, "keys: none"));
}

TEST(JsonlTest, ReadsTextWithItsEscapes) {
  ASSERT_OK_AND_ASSIGN(const JsonlRecord record,
                       Parse(R"({"text": "a\n\u00e9\ud83d\ude00", "meta": {"x": [1]}})", JsonlKind::kText));
  EXPECT_EQ(record.text, "a\n\u00e9\U0001F600");
}

TEST(JsonlTest, ReadsMessages) {
  ASSERT_OK_AND_ASSIGN(
      const JsonlRecord record,
      Parse(
          R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},)"
          R"( {"role": "assistant", "content": "a", "tool_calls": null}, {"role": "tool", "content": "t", "name": "x"}]})",
          JsonlKind::kMessages));
  EXPECT_EQ(record.messages,
            (std::vector<ChatMessage>{
                {Role::kSystem, "s"}, {Role::kUser, "u"}, {Role::kAssistant, "a"}, {Role::kTool, "t"}}));
}

TEST(JsonlTest, AnInputFollowsItsInstruction) {
  const std::vector<ChatMessage> alone = {{Role::kUser, "do"}, {Role::kAssistant, "done"}};
  for (const std::string text :
       {R"({"instruction": "do", "output": "done"})", R"({"instruction": "do", "input": "", "output": "done"})",
        R"({"instruction": "do", "input": null, "output": "done"})"}) {
    ASSERT_OK_AND_ASSIGN(const JsonlRecord record, Parse(text, JsonlKind::kInstruction));
    EXPECT_EQ(record.messages, alone);
  }
  ASSERT_OK_AND_ASSIGN(const JsonlRecord record,
                       Parse(R"({"instruction": "do", "input": "this", "output": "done"})", JsonlKind::kInstruction));
  EXPECT_EQ(record.messages[0].content, "do\n\nthis");
}

TEST(JsonlTest, APromptHasACompletionOrAResponse) {
  for (const std::string text : {R"({"prompt": "p", "completion": "c"})", R"({"prompt": "p", "response": "c"})"}) {
    ASSERT_OK_AND_ASSIGN(const JsonlRecord record, Parse(text, JsonlKind::kPrompt));
    EXPECT_EQ(record.messages, (std::vector<ChatMessage>{{Role::kUser, "p"}, {Role::kAssistant, "c"}}));
  }
  EXPECT_THAT(Parse(R"({"prompt": "p"})", JsonlKind::kPrompt), StatusIs(kInvalid, "completion: missing"));
}

TEST(JsonlTest, ASyntaxErrorIsNamedByItsByte) {
  EXPECT_THAT(Parse(R"({"text": x})", JsonlKind::kText),
              StatusIs(kInvalid, "line 7, byte offset 1009: not valid JSON"));
  EXPECT_THAT(Parse(R"({"text": "a"} {)", JsonlKind::kText), StatusIs(kInvalid, "byte offset 1014"));
  EXPECT_THAT(Parse("{\"text\": \"a\xFF\"}", JsonlKind::kText), StatusIs(kInvalid, "byte offset 1011"));
  EXPECT_THAT(Parse(R"({"text": "a)", JsonlKind::kText), StatusIs(kInvalid, "not valid JSON"));
  EXPECT_THAT(Parse(std::string(100'000, '['), JsonlKind::kText), StatusIs(kInvalid, "nested too deeply"));
}

TEST(JsonlTest, WhatIsWrongIsNamedByItsKey) {
  EXPECT_THAT(Parse("[]", JsonlKind::kText), StatusIs(kInvalid, "is array, must be an object"));
  EXPECT_THAT(Parse("{}", JsonlKind::kText), StatusIs(kInvalid, "text: missing"));
  EXPECT_THAT(Parse(R"({"text": 3})", JsonlKind::kText), StatusIs(kInvalid, "text: is number, must be a string"));
  EXPECT_THAT(Parse(R"({"instruction": "a"})", JsonlKind::kInstruction), StatusIs(kInvalid, "output: missing"));
  EXPECT_THAT(Parse(R"({"instruction": "a", "input": [], "output": "b"})", JsonlKind::kInstruction),
              StatusIs(kInvalid, "input: is array"));
  const auto messages = [](const std::string& list) {
    return Parse("{\"messages\": " + list + "}", JsonlKind::kMessages);
  };
  EXPECT_THAT(messages("3"), StatusIs(kInvalid, "messages: is number"));
  EXPECT_THAT(messages("[3]"), StatusIs(kInvalid, "messages[0]: is number, must be an object"));
  EXPECT_THAT(messages(R"([{"content": "a"}])"), StatusIs(kInvalid, "messages[0].role: missing"));
  EXPECT_THAT(messages(R"([{"role": "user", "content": "a"}, {"role": "bot", "content": "a"}])"),
              StatusIs(kInvalid, "messages[1].role: \"bot\", must be system, user, assistant or tool"));
  EXPECT_THAT(messages(R"([{"role": "user", "content": [{"type": "text"}]}])"),
              StatusIs(kInvalid, "messages[0].content: is array, must be a string"));
  EXPECT_THAT(messages(R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}])"),
              StatusIs(kInvalid, "messages[0].tool_calls: not supported"));
}

}  // namespace
}  // namespace eps
