#include "common/corpus/jsonl.h"

#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace {

nlohmann::json ToJson(const eps::JsonlRecord& record, eps::JsonlKind kind) {
  if (kind == eps::JsonlKind::kText) return {{"text", record.text}};
  nlohmann::json messages = nlohmann::json::array();
  for (const eps::ChatMessage& message : record.messages) {
    messages.push_back({{"role", eps::RoleName(message.role)}, {"content", message.content}});
    if (!message.is_counted) messages.back()["train"] = false;
  }
  return {{"messages", messages}};
}

}  // namespace

// A record that is taken is the same when it is written as JSON and read again: its texts are UTF-8, and there is nothing
// in it but texts and roles.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const eps::TextLine line{.text = absl::string_view(reinterpret_cast<const char*>(data), num_bytes)};
  const absl::StatusOr<eps::JsonlKind> found = eps::FindJsonlKind(line);
  for (const eps::JsonlKind kind :
       {eps::JsonlKind::kText, eps::JsonlKind::kMessages, eps::JsonlKind::kInstruction, eps::JsonlKind::kPrompt}) {
    const absl::StatusOr<eps::JsonlRecord> record = eps::ParseJsonlRecord(line, kind);
    if (!record.ok()) continue;
    if (!found.ok()) abort();
    const std::string written = ToJson(*record, kind).dump();
    const bool is_text = kind == eps::JsonlKind::kText;
    const absl::StatusOr<eps::JsonlRecord> again =
        eps::ParseJsonlRecord({.text = written}, is_text ? kind : eps::JsonlKind::kMessages);
    if (!again.ok() || again->text != record->text || again->messages != record->messages) abort();
  }
  return 0;
}
