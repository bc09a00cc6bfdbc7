#include "common/spec/run_spec_text.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/spec/run_spec_fields.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/io/tokenizer.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace eps {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using google::protobuf::TextFormat;

// The message that the last name of `path` stands in, or null if there is none.
const Descriptor* ParentOf(absl::string_view path) {
  const std::vector<std::string> names = absl::StrSplit(path, '.');
  const Descriptor* message = proto::RunSpec::descriptor();
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    const FieldDescriptor* field = message->FindFieldByName(names[i]);
    if (field == nullptr || field->message_type() == nullptr) return nullptr;
    message = field->message_type();
  }
  return message;
}

// ---- Where in a textproto an error is

// The byte at a position as the tokenizer counts it: from 0, a tab going to the next multiple of 8.
size_t OffsetOf(absl::string_view text, int line, int column) {
  size_t offset = 0;
  for (; line > 0 && offset < text.size(); ++offset) line -= text[offset] == '\n';
  for (int at = 0; at < column && offset < text.size() && text[offset] != '\n'; ++offset) {
    at += text[offset] == '\t' ? 8 - at % 8 : 1;
  }
  return offset;
}

bool IsWordPart(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The field that is being read at the end of `text`, with the messages it stands in:
// "optimizer.adamw.beta1". The parser's own messages often leave it out.
std::string PathAtEnd(absl::string_view text) {
  std::vector<std::string> enclosing;
  std::string name;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '#') {
      while (i < text.size() && text[i] != '\n') ++i;
    } else if (c == '"' || c == '\'') {
      for (++i; i < text.size() && text[i] != c; ++i) i += text[i] == '\\';
    } else if (c == '{' || c == '<') {
      enclosing.push_back(std::exchange(name, ""));
    } else if (c == '}' || c == '>') {
      if (!enclosing.empty()) enclosing.pop_back();
      name.clear();
    } else if (IsWordPart(c)) {
      size_t end = i;
      while (end < text.size() && IsWordPart(text[end])) ++end;
      // A field's name follows no colon, as an enum's value does, and is no number, like 6e-4.
      const absl::string_view before = absl::StripTrailingAsciiWhitespace(text.substr(0, i));
      if (!absl::EndsWith(before, ":") && !absl::ascii_isdigit(static_cast<unsigned char>(c)))
        name = std::string(text.substr(i, end - i));
      i = end - 1;
    }
  }
  enclosing.push_back(name);
  enclosing.erase(std::remove(enclosing.begin(), enclosing.end(), ""), enclosing.end());
  return absl::StrJoin(enclosing, ".");
}

// Keeps the first error, with its position and field.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  explicit FirstError(const std::string& text) : text_(text) {}

  void AddError(int line, google::protobuf::io::ColumnNumber column, const std::string& message) override {
    if (!message_.empty()) return;
    if (line < 0) {
      message_ = absl::StrCat(" ", message);
      return;
    }
    const std::string path = PathAtEnd(absl::string_view(text_).substr(0, OffsetOf(text_, line, column)));
    message_ = absl::StrCat(line + 1, ":", column + 1, ": ", path, path.empty() ? "" : ": ", Said(message, path));
  }

  const std::string& message() const { return message_; }

 private:
  // What the parser says of the field at `path`, with what would be right.
  static std::string Said(const std::string& message, absl::string_view path) {
    const Descriptor* parent = ParentOf(path);
    if (parent == nullptr) return message;
    if (absl::StrContains(message, "has no field named")) return UnknownFieldText(*parent);
    const FieldDescriptor* field = parent->FindFieldByName(std::string(path.substr(path.rfind('.') + 1)));
    if (field == nullptr || !absl::StartsWith(message, "Unknown enumeration value")) return message;
    return absl::StrCat(absl::StripSuffix(message, "."), "; must be ", TypeWords(*field));
  }

  const std::string& text_;
  std::string message_;
};

// ---- Overrides

// What the text format reads as octal: 010 is 8 there, and who types it means 10.
bool IsOctal(absl::string_view value) {
  absl::ConsumePrefix(&value, "-");
  return value.size() > 1 && value[0] == '0' && absl::ascii_isdigit(static_cast<unsigned char>(value[1]));
}

absl::Status SetField(const FieldOverride& override_field, const FieldDescriptor& field, Message& message) {
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING && field.is_repeated()) {
    message.GetReflection()->AddString(&message, &field, override_field.value);
    return absl::OkStatus();
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
    message.GetReflection()->SetString(&message, &field, override_field.value);
    return absl::OkStatus();
  }
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
    return absl::InvalidArgumentError(
        absl::StrCat(override_field.path, ": is a group; set one of its fields: ", FieldNames(*field.message_type())));
  }
  FirstError quiet(override_field.value);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&quiet);
  // The parser takes an enumerator's number too.
  const bool is_named = field.enum_type() == nullptr || field.enum_type()->FindValueByName(override_field.value);
  const bool is_number = field.cpp_type() != FieldDescriptor::CPPTYPE_BOOL && field.enum_type() == nullptr;
  const bool is_octal = is_number && IsOctal(override_field.value);
  if (!is_named || is_octal || !parser.ParseFieldValueFromString(override_field.value, &field, &message)) {
    return absl::InvalidArgumentError(absl::StrCat(override_field.path, ": \"", override_field.value, "\", must be ",
                                                   TypeWords(field, is_octal ? "" : override_field.value),
                                                   is_octal ? ", without leading zeros" : ""));
  }
  return absl::OkStatus();
}

// The message that "sources[1]" names, of those that `message` has; `is_last` in the override's path.
absl::StatusOr<Message*> OneOfMany(const FieldOverride& override_field, const std::string& name,
                                   const FieldDescriptor& field, bool is_last, Message& message) {
  const auto wrong = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat(override_field.path, ": ", why));
  };
  if (!IsMessages(field)) return wrong(absl::StrCat(field.name(), " takes no [...]"));
  const int size = message.GetReflection()->FieldSize(message, &field);
  int index = -1;
  const absl::string_view behind = absl::string_view(name).substr(field.name().size());
  if (is_last || behind.size() < 3 || behind.back() != ']' ||
      !absl::SimpleAtoi(behind.substr(1, behind.size() - 2), &index) || index < 0 || index >= size) {
    return wrong(absl::StrCat("name a field of one of them, as ", field.name(), "[0].",
                              field.message_type()->field(0)->name(), "; there are ", size));
  }
  return message.GetReflection()->MutableRepeatedMessage(&message, &field, index);
}

// ---- Differences

std::string ShowList(const Message& message, const FieldDescriptor& field) {
  const int size = message.GetReflection()->FieldSize(message, &field);
  std::vector<std::string> values(static_cast<size_t>(size));
  for (int i = 0; i < size; ++i) {
    TextFormat::PrintFieldValueToString(message, &field, i, &values[static_cast<size_t>(i)]);
  }
  return values.empty() ? "absent" : absl::StrCat("[", absl::StrJoin(values, ", "), "]");
}

std::string ShowField(const Message& message, const FieldDescriptor& field) {
  if (field.is_repeated()) return ShowList(message, field);
  if (!message.GetReflection()->HasField(message, &field)) return "absent";
  if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return "given";
  std::string text;
  TextFormat::PrintFieldValueToString(message, &field, -1, &text);
  return text;
}

void AppendDifferences(const Message& was, const Message& now, const std::string& path,
                       const std::vector<std::string>& skipped, std::vector<std::string>& out);

// Of a repeated message.
void AppendRepeatedDifferences(const Message& was, const Message& now, const FieldDescriptor& field,
                               const std::string& path, const std::vector<std::string>& skipped,
                               std::vector<std::string>& out) {
  const int old_size = was.GetReflection()->FieldSize(was, &field);
  const int new_size = now.GetReflection()->FieldSize(now, &field);
  if (old_size != new_size) {
    out.push_back(absl::StrCat(path, ": were ", old_size, ", now ", new_size));
    return;
  }
  for (int i = 0; i < old_size; ++i) {
    AppendDifferences(was.GetReflection()->GetRepeatedMessage(was, &field, i),
                      now.GetReflection()->GetRepeatedMessage(now, &field, i), absl::StrCat(path, "[", i, "]"), skipped,
                      out);
  }
}

void AppendDifferences(const Message& was, const Message& now, const std::string& path,
                       const std::vector<std::string>& skipped, std::vector<std::string>& out) {
  const Descriptor& type = *was.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    const std::string field_path = JoinPath(path, field.name());
    if (std::find(skipped.begin(), skipped.end(), field_path) != skipped.end()) continue;
    if (IsMessages(field)) {
      AppendRepeatedDifferences(was, now, field, field_path, skipped, out);
      continue;
    }
    const std::string old_text = ShowField(was, field), new_text = ShowField(now, field);
    if (old_text != new_text) {
      out.push_back(absl::StrCat(field_path, ": was ", old_text, ", now ", new_text));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && old_text != "absent") {
      AppendDifferences(was.GetReflection()->GetMessage(was, &field), now.GetReflection()->GetMessage(now, &field),
                        field_path, skipped, out);
    }
  }
}

}  // namespace

absl::StatusOr<proto::RunSpec> RunSpecFromTextproto(const std::string& text, const std::string& file_name) {
  proto::RunSpec spec;
  FirstError error(text);
  TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  if (!parser.ParseFromString(text, &spec)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ":", error.message().empty() ? " not a textproto" : error.message()));
  }
  EPS_RETURN_IF_ERROR_WITH(CheckValues(spec, ""), file_name);
  return spec;
}

absl::Status ApplyOverride(const FieldOverride& override_field, proto::RunSpec& spec) {
  const std::vector<std::string> names = absl::StrSplit(override_field.path, '.');
  Message* message = &spec;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = names[i].substr(0, names[i].find('['));
    const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(name);
    if (field == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(override_field.path, ": ", UnknownFieldText(*message->GetDescriptor())));
    }
    if (IsMessages(*field) || name != names[i]) {
      EPS_ASSIGN_OR_RETURN(message, OneOfMany(override_field, names[i], *field, i + 1 == names.size(), *message));
      continue;
    }
    if (i + 1 == names.size()) {
      EPS_RETURN_IF_ERROR(SetField(override_field, *field, *message));
      break;
    }
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      return absl::InvalidArgumentError(
          absl::StrCat(override_field.path, ": ", names[i], " is a value and has no field ", names[i + 1]));
    }
    // Setting a field of another alternative would silently throw away the one that the file chose.
    if (const google::protobuf::OneofDescriptor* choice = field->real_containing_oneof(); choice != nullptr) {
      const FieldDescriptor* chosen = message->GetReflection()->GetOneofFieldDescriptor(*message, choice);
      if (chosen != nullptr && chosen != field) {
        return absl::InvalidArgumentError(
            absl::StrCat(override_field.path, ": the run has ", chosen->name(), ", not ", field->name()));
      }
    }
    message = message->GetReflection()->MutableMessage(message, field);
  }
  return CheckValues(spec, "");
}

std::string RunSpecToTextproto(const proto::RunSpec& spec) {
  std::string text;
  TextFormat::PrintToString(spec, &text);
  return text;
}

std::vector<std::string> RunSpecDifferences(const proto::RunSpec& was, const proto::RunSpec& now,
                                            const std::vector<std::string>& skipped) {
  std::vector<std::string> differences;
  AppendDifferences(was, now, "", skipped, differences);
  return differences;
}

}  // namespace eps
