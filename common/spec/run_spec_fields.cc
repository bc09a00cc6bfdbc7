#include "common/spec/run_spec_fields.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

std::string EnumNames(const FieldDescriptor& field) {
  std::vector<std::string> names;
  for (int i = 0; i < field.enum_type()->value_count(); ++i) names.push_back(field.enum_type()->value(i)->name());
  return absl::StrJoin(names, ", ");
}

bool IsWholeNumber(absl::string_view text) {
  absl::ConsumePrefix(&text, "-");
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit);
}

absl::Status CheckText(const std::string& text, const std::string& path) {
  if (!absl::StrContains(text, '\0')) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(path, ": has a zero byte"));
}

// None is of enums.
absl::Status CheckRepeated(const Message& message, const FieldDescriptor& field, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < reflection.FieldSize(message, &field); ++i) {
    const std::string element_path = absl::StrCat(path, "[", i, "]");
    if (IsMessages(field)) {
      EPS_RETURN_IF_ERROR(CheckValues(reflection.GetRepeatedMessage(message, &field, i), element_path));
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      EPS_RETURN_IF_ERROR(CheckText(reflection.GetRepeatedString(message, &field, i), element_path));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string JoinPath(absl::string_view parent, absl::string_view name) {
  return parent.empty() ? std::string(name) : absl::StrCat(parent, ".", name);
}

std::string FieldNames(const Descriptor& message) {
  std::vector<std::string> names;
  for (int i = 0; i < message.field_count(); ++i) names.push_back(message.field(i)->name());
  return absl::StrJoin(names, ", ");
}

std::string UnknownFieldText(const Descriptor& message) {
  return absl::StrCat("unknown field; known: ", FieldNames(message));
}

std::string TypeWords(const FieldDescriptor& field, absl::string_view given) {
  const bool is_beyond = IsWholeNumber(given);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return absl::StrCat("a whole number", is_beyond ? ", at most 2147483647" : "");
    case FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat("a whole number", is_beyond ? ", at most 9223372036854775807" : "");
    case FieldDescriptor::CPPTYPE_UINT32:
      return absl::StrCat("a whole number, at least 0", is_beyond ? ", at most 4294967295" : "");
    case FieldDescriptor::CPPTYPE_UINT64:
      return absl::StrCat("a whole number, at least 0", is_beyond ? ", at most 18446744073709551615" : "");
    case FieldDescriptor::CPPTYPE_BOOL:
      return "true or false";
    case FieldDescriptor::CPPTYPE_STRING:
      return "a text";
    case FieldDescriptor::CPPTYPE_ENUM:
      return absl::StrCat("one of ", EnumNames(field));
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return absl::StrCat("a group of ", FieldNames(*field.message_type()));
    default:
      return "a number";
  }
}

bool IsMessages(const FieldDescriptor& field) {
  return field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
}

absl::Status CheckValues(const Message& message, const std::string& path) {
  const Reflection& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string field_path = JoinPath(path, field->name());
    if (field->is_repeated()) {
      EPS_RETURN_IF_ERROR(CheckRepeated(message, *field, field_path));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      EPS_RETURN_IF_ERROR(CheckValues(reflection.GetMessage(message, field), field_path));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_STRING) {
      EPS_RETURN_IF_ERROR(CheckText(reflection.GetString(message, field), field_path));
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_ENUM) {
      const int value = reflection.GetEnumValue(message, field);
      if (field->enum_type()->FindValueByNumber(value) == nullptr) {
        return absl::InvalidArgumentError(absl::StrCat(field_path, ": ", value, " names no value"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace eps
