#include "common/corpus/chat_prompt.h"

#include "absl/status/status.h"
#include "common/base/status_macros.h"

namespace eps {

absl::StatusOr<ChatPrompt> MakeChatPrompt(const DocumentMarks& marks, absl::Span<const ChatMessage> messages,
                                          Thoughts thoughts) {
  if (!messages.empty() && messages.back().role == Role::kAssistant) {
    return absl::InvalidArgumentError("the last message is the assistant's; it has to be one that is to be answered");
  }
  ChatPrompt prompt{.end_of_turn = marks.chat->end_of_turn()};
  EPS_ASSIGN_OR_RETURN(prompt.ids, marks.chat->EncodePrompt(messages, thoughts));
  if (marks.first) prompt.ids.insert(prompt.ids.begin(), *marks.first);
  return prompt;
}

}  // namespace eps
