#include "common/corpus/jsonl.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

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
  EXPECT_THAT(FindJsonlKind(Line(R"({"conversations": [], "id": 3})")), IsOkAndHolds(JsonlKind::kMessages));
  for (const std::string more : {"", R"(, "prompt": "p")", R"(, "prompt": "p", "response": "r")", R"(, "text": "t")"}) {
    EXPECT_THAT(FindJsonlKind(Line(R"({"chosen": "a", "rejected": "b")" + more + "}")),
                IsOkAndHolds(JsonlKind::kPreferences));
  }
  // Pairs that carry the chosen answer once more, as what it is where no pairs are wanted.
  const std::string pair = R"({"chosen": "a", "rejected": "b", )";
  const std::string messages = pair + R"("messages": []})", instruction = pair + R"("instruction": "i"})";
  for (const std::optional<bool> wanted : {std::optional<bool>(), std::optional(true)}) {
    EXPECT_THAT(FindJsonlKind(Line(messages), wanted), IsOkAndHolds(JsonlKind::kPreferences));
    EXPECT_THAT(FindJsonlKind(Line(instruction), wanted), IsOkAndHolds(JsonlKind::kPreferences));
  }
  EXPECT_THAT(FindJsonlKind(Line(messages), false), IsOkAndHolds(JsonlKind::kMessages));
  EXPECT_THAT(FindJsonlKind(Line(instruction), false), IsOkAndHolds(JsonlKind::kInstruction));
  EXPECT_THAT(FindJsonlKind(Line(pair + R"("prompt": "p"})"), false), IsOkAndHolds(JsonlKind::kPreferences));
  EXPECT_THAT(FindJsonlKind(Line(R"({"prompt": "p", "chosen": "a"})")), IsOkAndHolds(JsonlKind::kPrompt));
  EXPECT_THAT(FindJsonlKind(Line(R"({"dialog": [], "id": 3})")),
              StatusIs(kInvalid, R"(line 7, byte offset 1000: keys: "dialog", "id", must be "text")"));
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

TEST(JsonlTest, OtherFormsOfConversationsAreRead) {
  const std::vector<ChatMessage> wanted = {{Role::kSystem, "s"}, {Role::kUser, "u"}, {Role::kAssistant, "a"}};
  for (
      const std::string text :
      {R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]})",
       R"({"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}], "system": "s"})",
       R"({"messages": [{"role": "developer", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "u"}, {"type": "text", "text": ""}]},
            {"role": "assistant", "content": "a"}]})"}) {
    ASSERT_OK_AND_ASSIGN(const JsonlRecord record, Parse(text, JsonlKind::kMessages));
    EXPECT_EQ(record.messages, wanted) << text;
  }
  ASSERT_OK_AND_ASSIGN(
      const JsonlRecord dolly,
      Parse(R"({"instruction": "i", "context": "c", "response": "r", "category": "x"})", JsonlKind::kInstruction));
  EXPECT_EQ(dolly.messages, (std::vector<ChatMessage>{{Role::kUser, "i\n\nc"}, {Role::kAssistant, "r"}}));
  EXPECT_THAT(Parse(R"({"conversations": [{"from": "bing", "value": "u"}]})", JsonlKind::kMessages),
              StatusIs(kInvalid, "conversations[0].from: \"bing\", must be system, human, gpt, tool or observation"));
}

TEST(JsonlTest, AnswersWithinAPromptOfMessagesAreNotCounted) {
  ASSERT_OK_AND_ASSIGN(const JsonlRecord record,
                       Parse(R"({"prompt": [{"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}],)"
                             R"( "completion": [{"role": "assistant", "content": "b"}]})",
                             JsonlKind::kPrompt));
  EXPECT_EQ(record.messages, (std::vector<ChatMessage>{
                                 {Role::kUser, "u"}, {Role::kAssistant, "a", false}, {Role::kAssistant, "b", true}}));
  EXPECT_THAT(Parse(R"({"prompt": [], "completion": "b"})", JsonlKind::kPrompt),
              StatusIs(kInvalid, "completion: is string, must be an array"));
}

TEST(JsonlTest, AWeightSaysWhetherAnAnswerIsCounted) {
  const auto counted = [](const std::string& key) {
    const absl::StatusOr<JsonlRecord> record =
        Parse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\", " + key + "}]}", JsonlKind::kMessages);
    EXPECT_OK(record);
    return record.ok() && record->messages[0].is_counted;
  };
  EXPECT_FALSE(counted("\"weight\": 0"));
  EXPECT_TRUE(counted("\"weight\": 1"));
  EXPECT_TRUE(counted("\"weight\": null"));
  EXPECT_FALSE(counted("\"train\": false"));
  EXPECT_TRUE(counted("\"train\": true"));
  const auto refused = [](const std::string& role, const std::string& key) {
    return Parse("{\"messages\": [{\"role\": \"" + role + "\", \"content\": \"a\", " + key + "}]}",
                 JsonlKind::kMessages)
        .status();
  };
  EXPECT_THAT(refused("assistant", "\"weight\": 0.5"), StatusIs(kInvalid, "messages[0].weight: 0.5, must be 0 or 1"));
  EXPECT_THAT(refused("assistant", "\"train\": 1"), StatusIs(kInvalid, "messages[0].train: is number"));
  EXPECT_THAT(refused("user", "\"train\": true"), StatusIs(kInvalid, "only the assistant's are counted"));
  EXPECT_OK(refused("user", "\"train\": false"));
}

TEST(JsonlTest, KeysThatWouldChangeWhatIsLearntAreRefused) {
  const auto refused = [](const std::string& of_line, const std::string& of_message) {
    return Parse("{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"" + of_message + "}]" + of_line + "}",
                 JsonlKind::kMessages)
        .status();
  };
  EXPECT_THAT(refused(", \"tools\": [{}]", ""), StatusIs(kInvalid, "line 7, byte offset 1000: tools: not supported"));
  EXPECT_THAT(refused("", ", \"function_call\": {\"name\": \"f\"}"),
              StatusIs(kInvalid, "messages[0].function_call: not"));
  EXPECT_THAT(refused("", ", \"reasoning_content\": \"hm\""),
              StatusIs(kInvalid, "messages[0].reasoning_content: not supported: write the thoughts into content"));
  EXPECT_THAT(refused("", ", \"thinking\": \"hm\""), StatusIs(kInvalid, "messages[0].thinking"));
  EXPECT_OK(refused(", \"tools\": []", ", \"thinking\": null, \"reasoning_content\": \"\""));
}

TEST(JsonlTest, WhatAnAnswerBelongsToBesideItsTextIsRefused) {
  const auto refused = [](const std::string& more, JsonlKind kind = JsonlKind::kInstruction) {
    const std::string line = kind == JsonlKind::kInstruction ? R"({"instruction": "q", "output": "a", )"
                                                             : R"({"prompt": "q", "completion": "a", )";
    return Parse(line + more + "}", kind).status();
  };
  EXPECT_THAT(refused(R"("history": [["q", "a"]])"),
              StatusIs(kInvalid, "line 7, byte offset 1000: history: not supported: write the exchanges"));
  for (const std::string key : {"image", "images", "video", "videos"}) {
    EXPECT_THAT(refused("\"" + key + "\": [\"a.png\"]"), StatusIs(kInvalid, key + ": not supported: models here read"));
  }
  EXPECT_OK(refused(R"("history": [], "image": "", "images": null, "videos": [])"));
  EXPECT_THAT(
      refused(R"("label": false)", JsonlKind::kPrompt),
      StatusIs(kInvalid, "label: false, not supported: it tells wanted answers from unwanted ones; keep the lines"));
  EXPECT_THAT(refused(R"("label": true)", JsonlKind::kPrompt), StatusIs(kInvalid, "label: true"));
  EXPECT_THAT(refused(R"("label": 0)", JsonlKind::kPrompt),
              StatusIs(kInvalid,
                       "label: 0, not supported: it tells wanted answers from unwanted ones; keep the lines "
                       "where it is 1, without the key"));
  EXPECT_THAT(refused(R"("label": 1)", JsonlKind::kPrompt), StatusIs(kInvalid, "label: 1, not supported"));
  EXPECT_OK(refused(R"("label": "math")", JsonlKind::kPrompt)) << "a note of the data's own";
  EXPECT_OK(refused(R"("label": 2)", JsonlKind::kPrompt)) << "likewise";
}

TEST(JsonlTest, APairHasAPromptOrBothBeginWithIt) {
  const std::string user = R"({"role": "user", "content": "q"})", chosen = R"({"role": "assistant", "content": "a"})",
                    rejected = R"({"role": "assistant", "content": "b"})";
  for (const std::string& text :
       {std::string(R"({"prompt": "q", "chosen": "a", "rejected": "b"})"),
        R"({"prompt": [)" + user + R"(], "chosen": [)" + chosen + R"(], "rejected": [)" + rejected + "]}",
        R"({"chosen": [)" + user + ", " + chosen + R"(], "rejected": [)" + user + ", " + rejected + "]}"}) {
    ASSERT_OK_AND_ASSIGN(const JsonlRecord record, Parse(text, JsonlKind::kPreferences));
    EXPECT_EQ(record.messages, (std::vector<ChatMessage>{{Role::kUser, "q"}, {Role::kAssistant, "a"}})) << text;
    EXPECT_EQ(record.rejected, (std::vector<ChatMessage>{{Role::kUser, "q"}, {Role::kAssistant, "b"}})) << text;
  }
}

TEST(JsonlTest, OfAPairThePromptIsNotCounted) {
  const std::string before = R"({"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}, )"
                             R"({"role": "user", "content": "r"})";
  const std::string chosen = R"({"role": "assistant", "content": "c"}, {"role": "user", "content": "d"}, )"
                             R"({"role": "assistant", "content": "e"})",
                    rejected = R"({"role": "assistant", "content": "f"})";
  for (const std::string& text :
       {R"({"prompt": [)" + before + R"(], "chosen": [)" + chosen + R"(], "rejected": [)" + rejected + "]}",
        R"({"chosen": [)" + before + ", " + chosen + R"(], "rejected": [)" + before + ", " + rejected + "]}"}) {
    ASSERT_OK_AND_ASSIGN(const JsonlRecord record, Parse(text, JsonlKind::kPreferences));
    const std::vector<ChatMessage> prompt = {{Role::kUser, "q"}, {Role::kAssistant, "a", false}, {Role::kUser, "r"}};
    std::vector<ChatMessage> wanted = prompt;
    wanted.insert(wanted.end(), {{Role::kAssistant, "c"}, {Role::kUser, "d"}, {Role::kAssistant, "e"}});
    EXPECT_EQ(record.messages, wanted) << text;
    wanted = prompt;
    wanted.push_back({Role::kAssistant, "f"});
    EXPECT_EQ(record.rejected, wanted) << text;
  }
}

TEST(JsonlTest, WhatBothOfAPairSayIsThePromptWhateverItsWeights) {
  ASSERT_OK_AND_ASSIGN(const JsonlRecord record,
                       Parse(R"({"chosen": [{"role": "assistant", "content": "hi", "weight": 0},)"
                             R"( {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],)"
                             R"( "rejected": [{"role": "assistant", "content": "hi", "weight": 1},)"
                             R"( {"role": "user", "content": "q"}, {"role": "assistant", "content": "b"}]})",
                             JsonlKind::kPreferences));
  EXPECT_EQ(record.rejected,
            (std::vector<ChatMessage>{{Role::kAssistant, "hi", false}, {Role::kUser, "q"}, {Role::kAssistant, "b"}}));
}

TEST(JsonlTest, OfAPairBothBeginWithTheSystemsWords) {
  ASSERT_OK_AND_ASSIGN(
      const JsonlRecord record,
      Parse(R"({"prompt": "q", "chosen": "a", "rejected": "b", "system": "s"})", JsonlKind::kPreferences));
  EXPECT_EQ(record.messages,
            (std::vector<ChatMessage>{{Role::kSystem, "s"}, {Role::kUser, "q"}, {Role::kAssistant, "a"}}));
  EXPECT_EQ(record.rejected,
            (std::vector<ChatMessage>{{Role::kSystem, "s"}, {Role::kUser, "q"}, {Role::kAssistant, "b"}}));
  ASSERT_OK_AND_ASSIGN(const JsonlRecord own,
                       Parse(R"({"prompt": [{"role": "system", "content": "own"}], "system": "s",)"
                             R"( "chosen": [{"role": "assistant", "content": "a"}],)"
                             R"( "rejected": [{"role": "assistant", "content": "b"}]})",
                             JsonlKind::kPreferences));
  EXPECT_EQ(own.rejected, (std::vector<ChatMessage>{{Role::kSystem, "own"}, {Role::kAssistant, "b"}}));
}

TEST(JsonlTest, APairThatHasNothingToCompareIsRefused) {
  const auto refused = [](const std::string& members) {
    return Parse("{" + members + "}", JsonlKind::kPreferences).status();
  };
  EXPECT_THAT(refused(R"("prompt": "q", "chosen": "a", "rejected": "a")"),
              StatusIs(kInvalid, "line 7, byte offset 1000: rejected: says what chosen says"));
  const std::string user = R"({"role": "user", "content": "q"})", answer = R"({"role": "assistant", "content": "a"})",
                    other = R"({"role": "assistant", "content": "b"})";
  const auto lists = [&refused](const std::string& chosen, const std::string& rejected, const std::string& more = "") {
    return refused("\"chosen\": [" + chosen + "], \"rejected\": [" + rejected + "]" + more);
  };
  const std::string prompt = ", \"prompt\": [" + user + "]";
  EXPECT_OK(lists(user + "," + answer, user + "," + other));
  EXPECT_OK(lists(answer, other, prompt));
  EXPECT_OK(lists(user + "," + answer, user + "," + other, R"(, "prompt": "q")"));
  EXPECT_OK(lists(user + "," + answer, user + "," + other, R"(, "prompt": [])"));
  EXPECT_THAT(lists(user + "," + answer, user + "," + answer), StatusIs(kInvalid, "rejected: says what chosen says"));
  EXPECT_THAT(lists(answer, R"({"role": "assistant", "content": "a", "weight": 0})", prompt),
              StatusIs(kInvalid, "rejected: says what chosen says"));
  EXPECT_THAT(lists(answer, "", prompt), StatusIs(kInvalid, "rejected: has no answer behind the prompt"));
  EXPECT_THAT(lists(user, user + "," + answer), StatusIs(kInvalid, "chosen: has no answer behind the prompt, which"));
  EXPECT_THAT(lists(user + "," + answer, user + "," + other + "," + user),
              StatusIs(kInvalid, "rejected[2].role: user, must be assistant: an answer is the last message"));
  EXPECT_THAT(lists(answer + "," + user, other, prompt), StatusIs(kInvalid, "chosen[1].role: user, must be assistant"));
  EXPECT_THAT(lists(user + "," + answer, R"({"role": "user", "content": "another"},)" + other),
              StatusIs(kInvalid, "chosen[0].role: user, must be assistant: both are answers to the same prompt"));
  EXPECT_THAT(lists(user + "," + answer, user + "," + other, prompt),
              StatusIs(kInvalid, "chosen[0].role: user, must be assistant: both are answers to the same prompt"))
      << "the prompt would be said twice";
  EXPECT_THAT(lists(user + R"(, {"role": "assistant", "content": "b", "train": false})", user + "," + answer),
              StatusIs(kInvalid, "chosen[1]: is not counted, but is the answer to compare"));
}

TEST(JsonlTest, WhatIsWrongWithAPairIsNamedByItsKey) {
  const auto refused = [](const std::string& members) {
    return Parse("{" + members + "}", JsonlKind::kPreferences).status();
  };
  EXPECT_THAT(refused(R"("prompt": "q", "chosen": "a")"),
              StatusIs(kInvalid, "line 7, byte offset 1000: rejected: missing, must be there, as in the file's first"));
  EXPECT_THAT(refused(R"("text": "a")"), StatusIs(kInvalid, "chosen: missing"));
  EXPECT_THAT(refused(R"("chosen": "a", "rejected": "b")"),
              StatusIs(kInvalid, "prompt: missing, must be a string where chosen and rejected are no lists"));
  EXPECT_THAT(refused(R"("prompt": "q", "chosen": 1, "rejected": "b")"),
              StatusIs(kInvalid, "chosen: is number, must be a string"));
  EXPECT_THAT(refused(R"("prompt": [], "chosen": "a", "rejected": [])"),
              StatusIs(kInvalid, "chosen: is string, must be an array"));
  EXPECT_THAT(refused(R"("prompt": "q", "chosen": [{"role": "user", "content": "p"}, {"role": "assistant", )"
                      R"("content": "a"}], "rejected": [{"role": "user", "content": "p"}])"),
              StatusIs(kInvalid, "prompt: is string, and no message that both answers begin with says it"));
  EXPECT_THAT(refused(R"("chosen": [{"role": "bot", "content": "a"}], "rejected": [])"),
              StatusIs(kInvalid, "chosen[0].role: \"bot\", must be"));
  EXPECT_THAT(refused(R"("prompt": "q", "chosen": "a", "rejected": "b", "tools": [{}])"),
              StatusIs(kInvalid, "tools: not supported"));
  EXPECT_THAT(refused(R"("prompt": "q", "chosen": "a", "rejected": "b", "images": ["a.png"])"),
              StatusIs(kInvalid, "images: not supported"));
  EXPECT_THAT(refused(R"("prompt": "q", "chosen": "a", "rejected": "b", "label": false)"),
              StatusIs(kInvalid, "label: false, not supported: chosen and rejected tell the wanted answer"));
  EXPECT_OK(refused(R"("prompt": "q", "chosen": "a", "rejected": "b", "label": "math", "score_chosen": 8.5)"));
}

TEST(JsonlTest, APairAmongLinesOfAnotherKindIsRefused) {
  EXPECT_THAT(
      Parse(R"({"prompt": "q", "chosen": "a", "rejected": "b"})", JsonlKind::kPrompt),
      StatusIs(kInvalid, "line 7, byte offset 1000: chosen: with rejected a pair of answers, unlike the file's first"));
}

TEST(JsonlTest, AFirstLineWhoseTextIsNullSaysSo) {
  EXPECT_THAT(FindJsonlKind(Line(R"({"text": null})")),
              StatusIs(kInvalid, "line 7, byte offset 1000: text: is null, must have a value"));
  EXPECT_THAT(FindJsonlKind(Line(R"({"messages": null, "text": "a"})")), IsOkAndHolds(JsonlKind::kText));
  EXPECT_THAT(FindJsonlKind(Line(R"({"chosen": [], "rejected": null})")),
              StatusIs(kInvalid, "rejected: is null, must have a value"));
}

TEST(JsonlTest, AHalfOfASurrogatePairIsReplacedAndCounted) {
  ASSERT_OK_AND_ASSIGN(const JsonlRecord record,
                       Parse(R"({"text": "a\ud83d \ude00 \ud83d\ude00 \\ud83d"})", JsonlKind::kText));
  EXPECT_EQ(record.text, "a\uFFFD \uFFFD \U0001F600 \\ud83d");
  EXPECT_EQ(record.replaced_surrogates, 2);
}

TEST(JsonlTest, ASyntaxErrorSaysWhatItIs) {
  const auto refused = [](const std::string& text) { return Parse(text, JsonlKind::kText).status(); };
  EXPECT_THAT(refused(R"({"text": NaN})"), StatusIs(kInvalid, "not valid JSON: NaN is no number of JSON; write null"));
  EXPECT_THAT(refused(R"({"a": -Infinity})"), StatusIs(kInvalid, "-Infinity is no number of JSON"));
  EXPECT_THAT(refused(R"({"text": "a", })"), StatusIs(kInvalid, "byte offset 1014: not valid JSON: a comma before }"));
  EXPECT_THAT(refused(R"({"text": [1, ]})"), StatusIs(kInvalid, "a comma before ]"));
  EXPECT_THAT(refused("{\"text\": \"a\xFF\"}"), StatusIs(kInvalid, "ill-formed UTF-8 byte"));
  EXPECT_THAT(refused("{\"text\": \"a\tb\"}"), StatusIs(kInvalid, "control character U+0009 (HT) must be escaped"));
  EXPECT_THAT(refused(R"({"text": "a)"), StatusIs(kInvalid, "missing closing quote"));
  EXPECT_THAT(refused(R"({"text": "a" "b"})"), StatusIs(kInvalid, "unexpected string literal"));
  EXPECT_THAT(refused(R"({"text": "a"} {})"), StatusIs(kInvalid, "unexpected '{'; expected end of input"));
  EXPECT_THAT(refused(R"({"text": 1e999})"),
              StatusIs(kInvalid, "byte offset 1009: not valid JSON: the number 1e999 is too large"));
}

TEST(JsonlTest, NamesThatAreNotAsciiAreShownAsTheyAre) {
  EXPECT_THAT(FindJsonlKind(Line(R"({"текст": "a"})")), StatusIs(kInvalid, "keys: \"текст\", must be"));
  EXPECT_THAT(Parse(R"({"messages": [{"role": "Бот\n", "content": ""}]})", JsonlKind::kMessages),
              StatusIs(kInvalid, "messages[0].role: \"Бот\\n\", must be"));
}

TEST(JsonlTest, ASyntaxErrorIsNamedByItsByte) {
  EXPECT_THAT(Parse(R"({"text": x})", JsonlKind::kText),
              StatusIs(kInvalid, "line 7, byte offset 1009: not valid JSON"));
  EXPECT_THAT(Parse(R"({"text": "a"} {)", JsonlKind::kText), StatusIs(kInvalid, "byte offset 1014"));
  EXPECT_THAT(Parse("{\"text\": \"a\xFF\"}", JsonlKind::kText), StatusIs(kInvalid, "byte offset 1011"));
  EXPECT_THAT(Parse(R"({"text": "a)", JsonlKind::kText), StatusIs(kInvalid, "not valid JSON"));
  EXPECT_THAT(Parse(std::string(100'000, '['), JsonlKind::kText), StatusIs(kInvalid, "nested too deeply"));
}

TEST(JsonlTest, AKeyThatIsGivenTwiceIsNamedByItsPlace) {
  const auto refused = [](const std::string& text) { return Parse(text, JsonlKind::kText).status(); };
  EXPECT_THAT(refused(R"({"text":"aaaa","text":"bbbb"})"),
              StatusIs(kInvalid, "line 7, byte offset 1015: text: given twice"));
  EXPECT_THAT(FindJsonlKind(Line(R"({"text":"a", "text":"a"})")), StatusIs(kInvalid, "byte offset 1013: text: given"));
  EXPECT_THAT(refused(R"({"text": "a", "te\u0078t" : "b"})"),
              StatusIs(kInvalid, "byte offset 1014: text: given twice"));
  EXPECT_THAT(refused(R"({"text": "a", "x": [1, {"a\"\\": {}, "a\"\\": 1}]})"),
              StatusIs(kInvalid, R"(byte offset 1037: x[1].a\"\\: given twice)"));
  EXPECT_THAT(refused(R"({"": 1, "": 2})"), StatusIs(kInvalid, "byte offset 1008: \"\": given twice"));
  EXPECT_THAT(refused(R"({"text": "\ud83d", "text": ""})"), StatusIs(kInvalid, "byte offset 1019: text: given twice"));
  EXPECT_THAT(Parse(R"({"messages": [{"role": "user", "content": "a"}, {"role": "user", "role": "assistant"}]})",
                    JsonlKind::kMessages),
              StatusIs(kInvalid, "byte offset 1065: messages[1].role: given twice"));
  EXPECT_OK(refused(R"({"text": "a:b", "x:": {"text": ["\":", {"text": ":"}, {"text": "\\"}]}, "\\": []})"));
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
              StatusIs(kInvalid, "messages[1].role: \"bot\", must be system, developer, user, assistant or tool"));
  EXPECT_THAT(messages(R"([{"role": "user", "content": [{"type": "text"}]}])"),
              StatusIs(kInvalid, "messages[0].content[0].text: missing"));
  EXPECT_THAT(messages(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"),
              StatusIs(kInvalid, "messages[0].content[0].type: \"image_url\", must be text"));
  EXPECT_THAT(messages(R"([{"role": "user", "content": ["a"]}])"), StatusIs(kInvalid, "content[0]: is string"));
  EXPECT_THAT(messages(R"([{"role": "assistant", "content": null, "tool_calls": [{"id": "1"}]}])"),
              StatusIs(kInvalid, "messages[0].tool_calls: not supported"));
}

}  // namespace
}  // namespace eps
