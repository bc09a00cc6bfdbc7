#ifndef EPS_COMMON_CORPUS_CONVERSATION_H_
#define EPS_COMMON_CORPUS_CONVERSATION_H_

#include <string>

namespace eps {

enum class Role { kSystem, kUser, kAssistant, kTool };

// A turn of a conversation. The content is UTF-8.
struct ChatMessage {
  Role role = Role::kUser;
  std::string content;
  bool is_counted = true;  // false: of the assistant, and the loss leaves it out
  friend bool operator==(const ChatMessage&, const ChatMessage&) = default;
};

constexpr const char* RoleName(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
  }
  return "?";
}

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CONVERSATION_H_
