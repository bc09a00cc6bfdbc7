#ifndef EPS_COMMON_CORPUS_JSONL_H_
#define EPS_COMMON_CORPUS_JSONL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/corpus/conversation.h"
#include "common/corpus/line_reader.h"

namespace eps {

// What the lines of a JSONL file are. Keys beside these may be there and are not looked at, but for those that would
// change what is learnt: `system`, which is said first where the messages have none; refused are what an answer depends on
// and the messages do not say, such as `tools`, `history` and images, what messages have beside their content, and
// verdicts on an answer (docs/operations.md).
enum class JsonlKind {
  kText,         // {"text": "..."}
  kMessages,     // {"messages": [{"role": "user", "content": "..."}, ...]}, or "conversations" with "from" and "value"
  kInstruction,  // {"instruction": "...", "input": "...", "output": "..."}, or "context" and "response" in the place of
                 // the last two; input may be absent, null or empty
  kPrompt,  // {"prompt": "...", "completion": "..."}, or "response" in the place of "completion"; strings, or lists of
            // messages, of which those of the prompt are not counted
  // {"prompt": "...", "chosen": "...", "rejected": "..."}: two answers to one prompt; strings, or lists of messages.
  // Lists without a prompt, or with one that is a string, have it in themselves: it is what both begin with. It is not
  // counted.
  kPreferences,
};

struct JsonlRecord {
  std::string text;                   // of kText
  std::vector<ChatMessage> messages;  // of the others; instruction and prompt are the user's, the rest the assistant's
  // Of kPreferences, whose `messages` are the prompt and the chosen answer: the prompt and the rejected one. Behind the
  // prompt both begin and end with a message of the assistant, the last one counted, and they do not say the same.
  std::vector<ChatMessage> rejected;
  int64_t replaced_surrogates = 0;  // json_line.h
};

// The kind that a file's first line shows. Of several, chosen with rejected goes before messages, instruction, prompt and
// text, in this order: files of instructions often carry a text that was made of them, and files of pairs the chosen
// answer as messages. pairs: false: they are not wanted, and messages and instruction go before them.
// Errors: INVALID_ARGUMENT naming the line's place, and the keys that are wanted
absl::StatusOr<JsonlKind> FindJsonlKind(const TextLine& line, std::optional<bool> pairs = std::nullopt);

// A line that is of `kind`. Contents are valid UTF-8.
//
// Threads: safe
// Errors:  INVALID_ARGUMENT naming line, byte offset (of a syntax error: the very byte) and key
absl::StatusOr<JsonlRecord> ParseJsonlRecord(const TextLine& line, JsonlKind kind);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_JSONL_H_
