#include "common/corpus/jsonl.h"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/corpus/json_line.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::json;

constexpr absl::string_view kWantedKeys =
    "\"text\", \"messages\", \"conversations\", \"instruction\" and \"output\" or \"response\", \"prompt\" and "
    "\"completion\" or \"response\", or \"chosen\" and \"rejected\"";
constexpr absl::string_view kChosen = "chosen";
constexpr absl::string_view kRejected = "rejected";

absl::string_view TypeOf(const json& value) { return value.type_name(); }

bool IsEmpty(const json& value) {
  return value.is_string() ? value.get_ref<const std::string&>().empty() : value.is_structured() && value.empty();
}

// Reads members of one line's object; what is wrong is said with the line's place.
class Fields {
 public:
  Fields(const TextLine& line, const json& object, std::string prefix = "")
      : line_(line), object_(object), prefix_(std::move(prefix)) {}

  const TextLine& line() const { return line_; }

  // Null where it is absent; JSON's null counts as absent.
  const json* Find(absl::string_view key) const {
    const auto found = object_.find(std::string(key));
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  // The first of the keys that is there, or else the first.
  absl::string_view Either(std::initializer_list<absl::string_view> keys) const {
    for (const absl::string_view key : keys) {
      if (Find(key) != nullptr) return key;
    }
    return *keys.begin();
  }
  absl::StatusOr<std::string> String(absl::string_view key) const {
    const json* value = Find(key);
    if (value == nullptr) return Bad(key, "missing, must be a string");
    if (!value->is_string()) return Bad(key, absl::StrCat("is ", TypeOf(*value), ", must be a string"));
    return value->get_ref<const std::string&>();
  }
  // A key that would change what is learnt, and that nothing here understands.
  absl::Status Refuse(std::initializer_list<absl::string_view> keys, absl::string_view what_to_do) const {
    for (const absl::string_view key : keys) {
      const json* value = Find(key);
      if (value != nullptr && !IsEmpty(*value)) return Bad(key, absl::StrCat("not supported: ", what_to_do));
    }
    return absl::OkStatus();
  }
  absl::Status Bad(absl::string_view key, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(LinePlace(line_), ": ", prefix_, key, ": ", what));
  }
  std::string Name(absl::string_view key) const { return absl::StrCat(prefix_, key); }

 private:
  const TextLine& line_;
  const json& object_;
  const std::string prefix_;
};

absl::StatusOr<Role> ReadRole(const Fields& fields, absl::string_view key) {
  struct Name {
    absl::string_view name;
    Role role;
  };
  constexpr std::array kNames = {Name{"system", Role::kSystem},       Name{"developer", Role::kSystem},
                                 Name{"user", Role::kUser},           Name{"human", Role::kUser},
                                 Name{"assistant", Role::kAssistant}, Name{"gpt", Role::kAssistant},
                                 Name{"tool", Role::kTool},           Name{"observation", Role::kTool}};
  EPS_ASSIGN_OR_RETURN(const std::string role, fields.String(key));
  for (const Name& known : kNames) {
    if (role == known.name) return known.role;
  }
  const absl::string_view wanted =
      key == "from" ? "system, human, gpt, tool or observation" : "system, developer, user, assistant or tool";
  return fields.Bad(key, absl::StrCat(QuoteText(role), ", must be ", wanted));
}

// A string, or a list of parts of text, which are one.
absl::StatusOr<std::string> ReadContent(const Fields& fields, absl::string_view key) {
  const json* value = fields.Find(key);
  if (value == nullptr || !value->is_array()) return fields.String(key);
  std::string text;
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string name = absl::StrCat(key, "[", i, "]");
    const json& part = (*value)[i];
    if (!part.is_object()) return fields.Bad(name, absl::StrCat("is ", TypeOf(part), ", must be an object"));
    const Fields part_fields(fields.line(), part, absl::StrCat(fields.Name(name), "."));
    EPS_ASSIGN_OR_RETURN(const std::string type, part_fields.String("type"));
    if (type != "text") return part_fields.Bad("type", absl::StrCat(QuoteText(type), ", must be text"));
    EPS_ASSIGN_OR_RETURN(const std::string more, part_fields.String("text"));
    absl::StrAppend(&text, more);
  }
  return text;
}

// Whether the loss counts the message: `weight` of 0 or 1, or `train`.
absl::Status ReadCounted(const Fields& fields, ChatMessage& message) {
  const json* weight = fields.Find("weight");
  const json* train = fields.Find("train");
  if (weight != nullptr && !(weight->is_number() && (*weight == 0 || *weight == 1))) {
    return fields.Bad("weight", absl::StrCat(weight->dump().substr(0, 40), ", must be 0 or 1"));
  }
  if (train != nullptr && !train->is_boolean()) {
    return fields.Bad("train", absl::StrCat("is ", TypeOf(*train), ", must be true or false"));
  }
  if (message.role == Role::kAssistant) {
    message.is_counted = (weight == nullptr || *weight == 1) && (train == nullptr || train->get<bool>());
    return absl::OkStatus();
  }
  const bool is_wanted = (weight != nullptr && *weight == 1) || (train != nullptr && train->get<bool>());
  if (!is_wanted) return absl::OkStatus();
  return fields.Bad(weight != nullptr ? "weight" : "train",
                    absl::StrCat("of a message of ", RoleName(message.role), ": only the assistant's are counted"));
}

absl::StatusOr<ChatMessage> ReadMessage(const TextLine& line, const json& value, const std::string& name) {
  if (!value.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat(LinePlace(line), ": ", name, ": is ", TypeOf(value), ", must be an object"));
  }
  const Fields fields(line, value, absl::StrCat(name, "."));
  ChatMessage message;
  EPS_ASSIGN_OR_RETURN(message.role, ReadRole(fields, fields.Either({"role", "from"})));
  // A model that is to call tools, or to think, must learn it; without these it would learn something else.
  EPS_RETURN_IF_ERROR(
      fields.Refuse({"tool_calls", "function_call"}, "write the calls into content, as the model is to say them"));
  EPS_RETURN_IF_ERROR(fields.Refuse({"reasoning_content", "reasoning", "thinking"},
                                    "write the thoughts into content, as the model is to say them, such as in <think> "
                                    "and </think>, or take the key out"));
  EPS_ASSIGN_OR_RETURN(message.content, ReadContent(fields, fields.Either({"content", "value"})));
  EPS_RETURN_IF_ERROR(ReadCounted(fields, message));
  return message;
}

absl::StatusOr<std::vector<ChatMessage>> ReadList(const Fields& fields, absl::string_view key) {
  const json* list = fields.Find(key);
  if (list == nullptr) return fields.Bad(key, "missing, must be an array, as in the file's first line");
  if (!list->is_array()) return fields.Bad(key, absl::StrCat("is ", TypeOf(*list), ", must be an array"));
  std::vector<ChatMessage> messages;
  for (const json& value : *list) {
    EPS_ASSIGN_OR_RETURN(messages.emplace_back(),
                         ReadMessage(fields.line(), value, absl::StrCat(key, "[", messages.size(), "]")));
  }
  return messages;
}

absl::StatusOr<std::vector<ChatMessage>> ReadInstruction(const Fields& fields) {
  EPS_ASSIGN_OR_RETURN(std::string question, fields.String("instruction"));
  const absl::string_view input_key = fields.Either({"input", "context"});
  if (fields.Find(input_key) != nullptr) {
    EPS_ASSIGN_OR_RETURN(const std::string input, fields.String(input_key));
    if (!input.empty()) absl::StrAppend(&question, "\n\n", input);
  }
  EPS_ASSIGN_OR_RETURN(std::string answer, fields.String(fields.Either({"output", "response"})));
  return std::vector<ChatMessage>{{Role::kUser, std::move(question)}, {Role::kAssistant, std::move(answer)}};
}

// A line that has two answers to compare.
bool HasPair(const Fields& fields) { return fields.Find(kChosen) != nullptr && fields.Find(kRejected) != nullptr; }

// true and false, and 1 and 0, as files have them whose labels are numbers.
bool IsVerdict(const json& label) {
  return label.is_boolean() || (label.is_number_integer() && (label == 0 || label == 1));
}

void LeaveUncounted(std::vector<ChatMessage>& messages) {
  for (ChatMessage& message : messages) message.is_counted = message.role != Role::kAssistant;
}

absl::StatusOr<std::vector<ChatMessage>> ReadPrompt(const Fields& fields) {
  if (const json* label = fields.Find("label"); label != nullptr && IsVerdict(*label)) {
    return fields.Bad("label", absl::StrCat(label->dump(),
                                            ", not supported: it tells wanted answers from unwanted ones; "
                                            "keep the lines where it is ",
                                            label->is_boolean() ? "true" : "1", ", without the key"));
  }
  if (HasPair(fields)) {
    return fields.Bad(kChosen,
                      "with rejected a pair of answers, unlike the file's first line: pairs want a file of their own");
  }
  const absl::string_view answer_key = fields.Either({"completion", "response"});
  const json* prompt_value = fields.Find("prompt");
  if (prompt_value == nullptr || !prompt_value->is_array()) {
    EPS_ASSIGN_OR_RETURN(std::string prompt, fields.String("prompt"));
    EPS_ASSIGN_OR_RETURN(std::string answer, fields.String(answer_key));
    return std::vector<ChatMessage>{{Role::kUser, std::move(prompt)}, {Role::kAssistant, std::move(answer)}};
  }
  EPS_ASSIGN_OR_RETURN(std::vector<ChatMessage> messages, ReadList(fields, "prompt"));
  LeaveUncounted(messages);
  EPS_ASSIGN_OR_RETURN(const std::vector<ChatMessage> answers, ReadList(fields, answer_key));
  messages.insert(messages.end(), answers.begin(), answers.end());
  return messages;
}

// Two answers to one prompt.
struct Pair {
  std::vector<ChatMessage> prompt, chosen, rejected;
};

bool SaySame(const ChatMessage& a, const ChatMessage& b) { return a.role == b.role && a.content == b.content; }

// The members as they stand in the line; `prompt` is empty where the lists have it in themselves.
absl::StatusOr<Pair> ReadPair(const Fields& fields) {
  for (const absl::string_view key : {kChosen, kRejected}) {
    if (fields.Find(key) == nullptr) return fields.Bad(key, "missing, must be there, as in the file's first line");
  }
  const json* prompt = fields.Find("prompt");
  const bool has_lists = fields.Find(kChosen)->is_array() || fields.Find(kRejected)->is_array();
  if (!has_lists) {
    if (prompt == nullptr) {
      return fields.Bad("prompt", "missing, must be a string where chosen and rejected are no lists of messages");
    }
    EPS_ASSIGN_OR_RETURN(std::string question, fields.String("prompt"));
    EPS_ASSIGN_OR_RETURN(std::string chosen, fields.String(kChosen));
    EPS_ASSIGN_OR_RETURN(std::string rejected, fields.String(kRejected));
    return Pair{.prompt = {{Role::kUser, std::move(question)}},
                .chosen = {{Role::kAssistant, std::move(chosen)}},
                .rejected = {{Role::kAssistant, std::move(rejected)}}};
  }
  Pair pair;
  if (prompt != nullptr && !prompt->is_string()) {
    EPS_ASSIGN_OR_RETURN(pair.prompt, ReadList(fields, "prompt"));
  }
  EPS_ASSIGN_OR_RETURN(pair.chosen, ReadList(fields, kChosen));
  EPS_ASSIGN_OR_RETURN(pair.rejected, ReadList(fields, kRejected));
  return pair;
}

// What both begin with becomes the prompt. Its number of messages.
// Errors: a `prompt` beside the lists, a string, is none of its messages
absl::StatusOr<size_t> SplitOffPrompt(const Fields& fields, Pair& pair) {
  const auto [chosen_end, rejected_end] =
      std::mismatch(pair.chosen.begin(), pair.chosen.end(), pair.rejected.begin(), pair.rejected.end(), SaySame);
  pair.prompt.assign(pair.chosen.begin(), chosen_end);
  pair.chosen.erase(pair.chosen.begin(), chosen_end);
  pair.rejected.erase(pair.rejected.begin(), rejected_end);
  const json* said = fields.Find("prompt");
  const auto says_it = [&](const ChatMessage& message) {
    return message.content == said->get_ref<const std::string&>();
  };
  if (said != nullptr && said->is_string() && std::none_of(pair.prompt.begin(), pair.prompt.end(), says_it)) {
    return fields.Bad("prompt",
                      "is string, and no message that both answers begin with says it: make it an array of "
                      "messages, as the answers are, or take it out");
  }
  return pair.prompt.size();
}

// That what stands behind the prompt is an answer. `first`: how many messages stand before it in the list.
absl::Status CheckAnswer(const Fields& fields, absl::string_view key, const std::vector<ChatMessage>& answer,
                         size_t first) {
  if (answer.empty()) {
    return fields.Bad(key, "has no answer behind the prompt, which without \"prompt\" is what both begin with");
  }
  const auto bad_role = [&](size_t index, absl::string_view why) {
    return fields.Bad(absl::StrCat(key, "[", first + index, "].role"),
                      absl::StrCat(RoleName(answer[index].role), ", must be assistant: ", why));
  };
  // Of answers to different questions it could not be said which is the better one.
  if (answer.front().role != Role::kAssistant) return bad_role(0, "both are answers to the same prompt");
  if (answer.back().role != Role::kAssistant) return bad_role(answer.size() - 1, "an answer is the last message");
  if (answer.back().is_counted) return absl::OkStatus();
  return fields.Bad(absl::StrCat(key, "[", first + answer.size() - 1, "]"),
                    "is not counted, but is the answer to compare: take its \"weight\" or \"train\" out");
}

absl::Status ReadPreferences(const Fields& fields, JsonlRecord& record) {
  if (const json* label = fields.Find("label"); label != nullptr && IsVerdict(*label)) {
    return fields.Bad("label", absl::StrCat(label->dump(),
                                            ", not supported: chosen and rejected tell the wanted answer from the "
                                            "unwanted one; take the key out where they are right"));
  }
  EPS_ASSIGN_OR_RETURN(Pair pair, ReadPair(fields));
  if (std::equal(pair.chosen.begin(), pair.chosen.end(), pair.rejected.begin(), pair.rejected.end(), SaySame)) {
    return fields.Bad(kRejected, "says what chosen says: such a pair teaches nothing, take the line out");
  }
  size_t first = 0;
  if (pair.prompt.empty()) {
    EPS_ASSIGN_OR_RETURN(first, SplitOffPrompt(fields, pair));
  }
  EPS_RETURN_IF_ERROR(CheckAnswer(fields, kChosen, pair.chosen, first));
  EPS_RETURN_IF_ERROR(CheckAnswer(fields, kRejected, pair.rejected, first));
  LeaveUncounted(pair.prompt);
  record.messages = pair.prompt;
  record.messages.insert(record.messages.end(), pair.chosen.begin(), pair.chosen.end());
  record.rejected = std::move(pair.prompt);
  record.rejected.insert(record.rejected.end(), pair.rejected.begin(), pair.rejected.end());
  return absl::OkStatus();
}

// What an answer depends on and the messages do not say.
absl::Status RefuseWhatIsNotRead(const Fields& fields) {
  EPS_RETURN_IF_ERROR(fields.Refuse({"tools", "functions", "function_call"},
                                    "write what the model is to know of its tools into the system's content"));
  EPS_RETURN_IF_ERROR(
      fields.Refuse({"history"}, "write the exchanges that came before as messages, with the last one"));
  return fields.Refuse({"image", "images", "video", "videos"},
                       "models here read text; take such lines out, or the key where the text is enough");
}

// The line's own `system` is said first, where there are messages and they have none.
absl::Status AddSystem(const Fields& fields, std::vector<ChatMessage>& messages) {
  const bool says_system = fields.Find("system") != nullptr && !IsEmpty(*fields.Find("system"));
  if (!says_system || messages.empty() || messages.front().role == Role::kSystem) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(std::string system, fields.String("system"));
  messages.insert(messages.begin(), {Role::kSystem, std::move(system)});
  return absl::OkStatus();
}

absl::Status ReadConversation(const Fields& fields, JsonlKind kind, JsonlRecord& record) {
  EPS_RETURN_IF_ERROR(RefuseWhatIsNotRead(fields));
  if (kind == JsonlKind::kPreferences) {
    EPS_RETURN_IF_ERROR(ReadPreferences(fields, record));
    EPS_RETURN_IF_ERROR(AddSystem(fields, record.rejected));
  } else {
    EPS_ASSIGN_OR_RETURN(record.messages, kind == JsonlKind::kMessages
                                              ? ReadList(fields, fields.Either({"messages", "conversations"}))
                                          : kind == JsonlKind::kInstruction ? ReadInstruction(fields)
                                                                            : ReadPrompt(fields));
  }
  return AddSystem(fields, record.messages);
}

}  // namespace

absl::StatusOr<JsonlKind> FindJsonlKind(const TextLine& line, std::optional<bool> pairs) {
  EPS_ASSIGN_OR_RETURN(const JsonLine parsed, ParseJsonLine(line));
  const Fields fields(line, parsed.object);
  if (HasPair(fields) && pairs.value_or(true)) return JsonlKind::kPreferences;
  for (const char* key : {"messages", "conversations"}) {
    if (fields.Find(key) != nullptr) return JsonlKind::kMessages;
  }
  if (fields.Find("instruction") != nullptr) return JsonlKind::kInstruction;
  if (HasPair(fields)) return JsonlKind::kPreferences;  // which is refused where it is unwanted
  if (fields.Find("prompt") != nullptr) return JsonlKind::kPrompt;
  if (fields.Find("text") != nullptr) return JsonlKind::kText;
  for (const char* key : {"messages", "conversations", "instruction", "prompt", "text", "chosen", "rejected"}) {
    const bool is_null = parsed.object.contains(key) && fields.Find(key) == nullptr;
    if (is_null) return fields.Bad(key, "is null, must have a value");
  }
  std::string found;
  for (const auto& member : parsed.object.items()) {
    if (found.size() < 200) absl::StrAppend(&found, found.empty() ? "" : ", ", QuoteText(member.key()));
  }
  return absl::InvalidArgumentError(
      absl::StrCat(LinePlace(line), ": keys: ", found.empty() ? "none" : found, ", must be ", kWantedKeys));
}

absl::StatusOr<JsonlRecord> ParseJsonlRecord(const TextLine& line, JsonlKind kind) {
  EPS_ASSIGN_OR_RETURN(const JsonLine parsed, ParseJsonLine(line));
  const Fields fields(line, parsed.object);
  JsonlRecord record{.replaced_surrogates = parsed.replaced_surrogates};
  if (kind == JsonlKind::kText) {
    EPS_ASSIGN_OR_RETURN(record.text, fields.String("text"));
  } else {
    EPS_RETURN_IF_ERROR(ReadConversation(fields, kind, record));
  }
  return record;
}

}  // namespace eps
