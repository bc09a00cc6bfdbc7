#ifndef EPS_COMMON_CORPUS_CHAT_TEMPLATE_THOUGHTS_H_
#define EPS_COMMON_CORPUS_CHAT_TEMPLATE_THOUGHTS_H_

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/corpus/conversation.h"

namespace eps {

// Before an answer that has no thoughts.
inline constexpr absl::string_view kEmptyThought = "<think>\n\n</think>\n\n";

// What an answer of a conversation is for models that think first, as the chat_template of Qwen3 renders it.
struct ThoughtfulAnswer {
  absl::string_view lead;  // before it, not said by the data: an empty thought, or nothing
  std::string text;        // with its own thought, in <think> and </think>, where it stays
};

// The last turn of the user, by its index, which alone keeps the thoughts of the answers behind it; results of tools are
// none. Without one, that of the last message.
size_t LastQuery(absl::Span<const ChatMessage> messages);

// messages[index]: of the assistant. Behind the last query a thought stays, and the last message has an empty one where
// it has none; thoughts of earlier answers are dropped.
ThoughtfulAnswer AnswerWithThoughts(absl::Span<const ChatMessage> messages, size_t index, size_t last_query);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_TEMPLATE_THOUGHTS_H_
