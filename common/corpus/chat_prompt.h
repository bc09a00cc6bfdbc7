#ifndef EPS_COMMON_CORPUS_CHAT_PROMPT_H_
#define EPS_COMMON_CORPUS_CHAT_PROMPT_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/corpus/chat_template.h"
#include "common/corpus/conversation.h"
#include "common/corpus/document_marks.h"

namespace eps {

// What a model is given so that it answers a conversation.
struct ChatPrompt {
  std::vector<int32_t> ids;
  std::optional<int32_t> end_of_turn;  // of the answer; nullopt: ChatTemplate::kTextEndOfTurn ends it
};

// The tokens of `messages` and of what stands before an answer, as a conversation that has the answer begins in
// training. marks: of conversations
// Errors: INVALID_ARGUMENT the last message is the assistant's own · ChatTemplate::EncodePrompt's
absl::StatusOr<ChatPrompt> MakeChatPrompt(const DocumentMarks& marks, absl::Span<const ChatMessage> messages,
                                          Thoughts thoughts = Thoughts::kLeftToModel);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CHAT_PROMPT_H_
