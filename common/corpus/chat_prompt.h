#ifndef EPS_COMMON_CORPUS_CHAT_PROMPT_H_
#define EPS_COMMON_CORPUS_CHAT_PROMPT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/corpus/conversation.h"
#include "common/corpus/document_marks.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// What a model is given so that it answers a conversation.
struct ChatPrompt {
  std::vector<int32_t> ids;
  std::optional<int32_t> end_of_turn;  // of the answer; nullopt: text ends it
};

// The tokens of `messages` and of what stands before an answer, exactly as a conversation that has the answer begins in
// training. marks: of conversations
// Errors: INVALID_ARGUMENT the last message is the assistant's own · ChatTemplate::Encode's
absl::StatusOr<ChatPrompt> MakeChatPrompt(const DocumentMarks& marks, const Tokenizer& tokenizer,
                                          absl::Span<const ChatMessage> messages);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_PROMPT_H_
