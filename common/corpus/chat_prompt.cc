#include "common/corpus/chat_prompt.h"

#include <algorithm>
#include <string>

#include "absl/status/status.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

absl::StatusOr<EncodedConversation> EncodeWithAnswer(const ChatTemplate& chat, absl::Span<const ChatMessage> messages,
                                                     const std::string& answer) {
  std::vector<ChatMessage> with_answer(messages.begin(), messages.end());
  with_answer.push_back({.role = Role::kAssistant, .content = answer});
  return chat.Encode(with_answer);
}

// A token that is no text.
bool IsSpecial(int32_t id, const Tokenizer& tokenizer) { return tokenizer.Decode({id}, true).empty(); }

}  // namespace

absl::StatusOr<ChatPrompt> MakeChatPrompt(const DocumentMarks& marks, const Tokenizer& tokenizer,
                                          absl::Span<const ChatMessage> messages) {
  if (!messages.empty() && messages.back().role == Role::kAssistant) {
    return absl::InvalidArgumentError("the last message is the assistant's; it has to be one that is to be answered");
  }
  // What does not depend on the answer. A token that its first letter shares with the markup before it does.
  EPS_ASSIGN_OR_RETURN(const EncodedConversation one, EncodeWithAnswer(*marks.chat, messages, "A"));
  EPS_ASSIGN_OR_RETURN(const EncodedConversation other, EncodeWithAnswer(*marks.chat, messages, "7"));
  ChatPrompt prompt;
  if (marks.first) prompt.ids.push_back(*marks.first);
  const auto answer = std::mismatch(one.ids.begin(), one.ids.end(), other.ids.begin(), other.ids.end()).first;
  prompt.ids.insert(prompt.ids.end(), one.ids.begin(), answer);
  const int32_t last = one.ids[static_cast<size_t>(one.answers.back().end - 1)];
  if (IsSpecial(last, tokenizer)) prompt.end_of_turn = last;
  return prompt;
}

}  // namespace eps
