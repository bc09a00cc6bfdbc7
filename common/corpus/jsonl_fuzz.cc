#include "common/corpus/jsonl.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace {

using Messages = std::vector<eps::ChatMessage>;

nlohmann::json ToJson(Messages::const_iterator begin, Messages::const_iterator end) {
  nlohmann::json messages = nlohmann::json::array();
  for (; begin != end; ++begin) {
    messages.push_back({{"role", eps::RoleName(begin->role)}, {"content", begin->content}});
    if (!begin->is_counted) messages.back()["train"] = false;
  }
  return messages;
}

bool IsAnswer(const eps::ChatMessage& message) { return message.role == eps::Role::kAssistant; }

// What may be the prompt: the longest beginning that both have, behind which both have an answer, and in which none is
// counted.
size_t PromptOf(const Messages& chosen, const Messages& rejected) {
  size_t prompt = 0;
  for (size_t i = 0; i < std::min(chosen.size(), rejected.size()); ++i) {
    if (IsAnswer(chosen[i]) && IsAnswer(rejected[i])) prompt = i;
    if (chosen[i] != rejected[i] || (IsAnswer(chosen[i]) && chosen[i].is_counted)) break;
  }
  return prompt;
}

nlohmann::json ToJson(const eps::JsonlRecord& record, eps::JsonlKind kind) {
  if (kind == eps::JsonlKind::kText) return {{"text", record.text}};
  const Messages &messages = record.messages, &rejected = record.rejected;
  if (kind != eps::JsonlKind::kPreferences) return {{"messages", ToJson(messages.begin(), messages.end())}};
  const auto prompt = static_cast<Messages::difference_type>(PromptOf(messages, rejected));
  return {{"prompt", ToJson(messages.begin(), messages.begin() + prompt)},
          {"chosen", ToJson(messages.begin() + prompt, messages.end())},
          {"rejected", ToJson(rejected.begin() + prompt, rejected.end())}};
}

// That there is something to compare.
bool IsPair(const eps::JsonlRecord& record) {
  const auto ends_in_answer = [](const Messages& messages) {
    return !messages.empty() && IsAnswer(messages.back()) && messages.back().is_counted;
  };
  return ends_in_answer(record.messages) && ends_in_answer(record.rejected) && record.messages != record.rejected;
}

}  // namespace

// A record that is taken is the same when it is written as JSON and read again: its texts are UTF-8, and there is nothing
// in it but texts and roles.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const eps::TextLine line{.text = absl::string_view(reinterpret_cast<const char*>(data), num_bytes)};
  const absl::StatusOr<eps::JsonlKind> found = eps::FindJsonlKind(line);
  for (const eps::JsonlKind kind : {eps::JsonlKind::kText, eps::JsonlKind::kMessages, eps::JsonlKind::kInstruction,
                                    eps::JsonlKind::kPrompt, eps::JsonlKind::kPreferences}) {
    const absl::StatusOr<eps::JsonlRecord> record = eps::ParseJsonlRecord(line, kind);
    if (!record.ok()) continue;
    if (!found.ok()) abort();
    const bool is_pair = kind == eps::JsonlKind::kPreferences;
    if (is_pair ? !IsPair(*record) : !record->rejected.empty()) abort();
    const std::string written = ToJson(*record, kind).dump();
    const bool is_own = is_pair || kind == eps::JsonlKind::kText;
    const absl::StatusOr<eps::JsonlRecord> again =
        eps::ParseJsonlRecord({.text = written}, is_own ? kind : eps::JsonlKind::kMessages);
    if (!again.ok() || again->text != record->text || again->messages != record->messages) abort();
    if (again->rejected != record->rejected) abort();
  }
  return 0;
}
