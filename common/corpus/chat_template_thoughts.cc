#include "common/corpus/chat_template_thoughts.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace eps {
namespace {

constexpr absl::string_view kBegin = "<think>", kEnd = "</think>";

absl::string_view WithoutNewlinesBefore(absl::string_view text) {
  while (absl::ConsumePrefix(&text, "\n")) {
  }
  return text;
}

absl::string_view WithoutNewlinesBehind(absl::string_view text) {
  while (absl::ConsumeSuffix(&text, "\n")) {
  }
  return text;
}

// What stands before the first </think> and behind the last <think> there.
absl::string_view ThoughtOf(absl::string_view content) {
  absl::string_view thought = WithoutNewlinesBehind(content.substr(0, content.find(kEnd)));
  if (const size_t begin = thought.rfind(kBegin); begin != absl::string_view::npos) {
    thought.remove_prefix(begin + kBegin.size());
  }
  return WithoutNewlinesBehind(WithoutNewlinesBefore(thought));
}

bool IsToolResult(absl::string_view content) {
  return absl::StartsWith(content, "<tool_response>") && absl::EndsWith(content, "</tool_response>");
}

}  // namespace

size_t LastQuery(absl::Span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == Role::kUser && !IsToolResult(messages[i].content)) return i;
  }
  return messages.size() - 1;
}

ThoughtfulAnswer AnswerWithThoughts(absl::Span<const ChatMessage> messages, size_t index, size_t last_query) {
  absl::string_view content = messages[index].content, thought;
  if (const size_t end = content.rfind(kEnd); end != absl::string_view::npos) {
    thought = ThoughtOf(content);
    content = WithoutNewlinesBefore(content.substr(end + kEnd.size()));
  }
  const bool is_last = index + 1 == messages.size();
  if (index <= last_query || (thought.empty() && !is_last)) return {.lead = "", .text = std::string(content)};
  content = WithoutNewlinesBefore(content);
  if (thought.empty()) return {.lead = kEmptyThought, .text = std::string(content)};
  return {.lead = "", .text = absl::StrCat(kBegin, "\n", thought, "\n", kEnd, "\n\n", content)};
}

}  // namespace eps
