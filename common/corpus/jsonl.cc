#include "common/corpus/jsonl.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr absl::string_view kWantedKeys =
    "\"text\", \"messages\", \"instruction\" and \"output\", or \"prompt\" and \"completion\" or \"response\"";

std::string Shown(absl::string_view text) {
  constexpr size_t kMaxShown = 60;
  return absl::StrCat("\"", absl::CHexEscape(text.substr(0, kMaxShown)), text.size() > kMaxShown ? "..." : "", "\"");
}

absl::string_view TypeOf(const json& value) { return value.type_name(); }

// Reads a text for the place of its first error alone.
class ErrorFinder final : public nlohmann::json_sax<json> {
 public:
  int64_t position() const { return position_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&) override {
    position_ = static_cast<int64_t>(position) - (position > 0 ? 1 : 0);  // the library counts from 1
    return false;
  }

 private:
  int64_t position_ = 0;
};

absl::StatusOr<json> ParseObject(const TextLine& line) {
  absl::StatusOr<json> document = ParseJson(line.text, kMaxDepth);
  if (!document.ok()) {
    ErrorFinder finder;
    json::sax_parse(line.text.begin(), line.text.end(), &finder);
    TextLine place = line;
    place.offset_bytes += finder.position();
    return Annotate(document.status(), LinePlace(place));
  }
  if (document->is_object()) return document;
  return absl::InvalidArgumentError(
      absl::StrCat(LinePlace(line), ": is ", TypeOf(*document), ", must be an object; JSONL has one on each line"));
}

// Reads members of one line's object; what is wrong is said with the line's place.
class Fields {
 public:
  Fields(const TextLine& line, const json& object, std::string prefix = "")
      : line_(line), object_(object), prefix_(std::move(prefix)) {}

  // Null where it is absent; JSON's null counts as absent.
  const json* Find(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  absl::StatusOr<std::string> String(const char* key) const {
    const json* value = Find(key);
    if (value == nullptr) return Bad(key, "missing, must be a string");
    if (!value->is_string()) return Bad(key, absl::StrCat("is ", TypeOf(*value), ", must be a string"));
    return value->get_ref<const std::string&>();
  }
  absl::Status Bad(absl::string_view key, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(LinePlace(line_), ": ", prefix_, key, ": ", what));
  }

 private:
  const TextLine& line_;
  const json& object_;
  const std::string prefix_;
};

std::optional<Role> RoleNamed(absl::string_view name) {
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant, Role::kTool}) {
    if (name == RoleName(role)) return role;
  }
  return std::nullopt;
}

absl::StatusOr<ChatMessage> ReadMessage(const TextLine& line, const json& value, size_t index) {
  const std::string name = absl::StrCat("messages[", index, "]");
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(LinePlace(line), ": ", name, ": is ", TypeOf(value), ", must be an object"));
  }
  const Fields fields(line, value, absl::StrCat(name, "."));
  ChatMessage message;
  EPS_ASSIGN_OR_RETURN(const std::string role, fields.String("role"));
  const std::optional<Role> known = RoleNamed(role);
  if (!known) return fields.Bad("role", absl::StrCat(Shown(role), ", must be system, user, assistant or tool"));
  message.role = *known;
  // A model that is to call tools must learn the calls; without them it would learn something else.
  const json* calls = fields.Find("tool_calls");
  if (calls != nullptr && !calls->empty()) {
    return fields.Bad("tool_calls", "not supported: write the calls into content, as the model is to say them");
  }
  EPS_ASSIGN_OR_RETURN(message.content, fields.String("content"));
  return message;
}

absl::StatusOr<std::vector<ChatMessage>> ReadMessages(const TextLine& line, const Fields& fields) {
  const json* list = fields.Find("messages");
  if (list == nullptr) return fields.Bad("messages", "missing, must be an array, as in the file's first line");
  if (!list->is_array()) return fields.Bad("messages", absl::StrCat("is ", TypeOf(*list), ", must be an array"));
  std::vector<ChatMessage> messages;
  for (const json& value : *list) {
    EPS_ASSIGN_OR_RETURN(messages.emplace_back(), ReadMessage(line, value, messages.size()));
  }
  return messages;
}

absl::StatusOr<std::vector<ChatMessage>> ReadInstruction(const Fields& fields) {
  EPS_ASSIGN_OR_RETURN(std::string question, fields.String("instruction"));
  if (fields.Find("input") != nullptr) {
    EPS_ASSIGN_OR_RETURN(const std::string input, fields.String("input"));
    if (!input.empty()) absl::StrAppend(&question, "\n\n", input);
  }
  EPS_ASSIGN_OR_RETURN(std::string answer, fields.String("output"));
  return std::vector<ChatMessage>{{Role::kUser, std::move(question)}, {Role::kAssistant, std::move(answer)}};
}

absl::StatusOr<std::vector<ChatMessage>> ReadPrompt(const Fields& fields) {
  EPS_ASSIGN_OR_RETURN(std::string prompt, fields.String("prompt"));
  const bool has_response = fields.Find("completion") == nullptr && fields.Find("response") != nullptr;
  EPS_ASSIGN_OR_RETURN(std::string answer, fields.String(has_response ? "response" : "completion"));
  return std::vector<ChatMessage>{{Role::kUser, std::move(prompt)}, {Role::kAssistant, std::move(answer)}};
}

}  // namespace

absl::StatusOr<JsonlKind> FindJsonlKind(const TextLine& line) {
  EPS_ASSIGN_OR_RETURN(const json object, ParseObject(line));
  const Fields fields(line, object);
  if (fields.Find("messages") != nullptr) return JsonlKind::kMessages;
  if (fields.Find("instruction") != nullptr) return JsonlKind::kInstruction;
  if (fields.Find("prompt") != nullptr) return JsonlKind::kPrompt;
  if (fields.Find("text") != nullptr) return JsonlKind::kText;
  std::string found;
  for (const auto& member : object.items()) {
    if (found.size() < 200) absl::StrAppend(&found, found.empty() ? "" : ", ", Shown(member.key()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(LinePlace(line), ": keys: ", found.empty() ? "none" : found, ", must be ", kWantedKeys));
}

absl::StatusOr<JsonlRecord> ParseJsonlRecord(const TextLine& line, JsonlKind kind) {
  EPS_ASSIGN_OR_RETURN(const json object, ParseObject(line));
  const Fields fields(line, object);
  JsonlRecord record;
  switch (kind) {
    case JsonlKind::kText: {
      EPS_ASSIGN_OR_RETURN(record.text, fields.String("text"));
      return record;
    }
    case JsonlKind::kMessages: {
      EPS_ASSIGN_OR_RETURN(record.messages, ReadMessages(line, fields));
      return record;
    }
    case JsonlKind::kInstruction: {
      EPS_ASSIGN_OR_RETURN(record.messages, ReadInstruction(fields));
      return record;
    }
    case JsonlKind::kPrompt: {
      EPS_ASSIGN_OR_RETURN(record.messages, ReadPrompt(fields));
      return record;
    }
  }
  return absl::InternalError("a kind of JSONL that is none");
}

}  // namespace eps
