#include <algorithm>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/json_events.h"
#include "common/base/status_macros.h"
#include "common/spec/run_spec_fields.h"
#include "common/spec/run_spec_text.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::OneofDescriptor;

// "line 3, column 17" of the byte there, counted from 1.
std::string PlaceOf(absl::string_view text, size_t offset) {
  const absl::string_view before = text.substr(0, offset);
  const size_t line_end = before.rfind('\n');
  const size_t line_begin = line_end == absl::string_view::npos ? 0 : line_end + 1;
  return absl::StrCat("line ", std::count(before.begin(), before.end(), '\n') + 1, ", column ",
                      before.size() - line_begin + 1);
}

// Finds what no reading of values finds: where a text is no JSON, and a member that an object has twice. Keeps no values.
class JsonReader : public JsonEvents {
 public:
  explicit JsonReader(absl::string_view text) : text_(text) {}

  // The first error, "" if there is none.
  const std::string& error() const { return error_; }

  bool start_object(size_t) override {
    open_.emplace_back();
    return Enter();
  }
  bool key(string_t& name) override {
    open_.back().name = name;
    if (!open_.back().seen.insert(name).second) error_ = absl::StrCat(Path(), ": given twice");
    return error_.empty();
  }
  bool end_object() override {
    open_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return Enter(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t position, const std::string& token, const nlohmann::detail::exception& exception) override {
    constexpr int kOverflow = 406;  // the library's number of it, which says neither where nor of what
    if (exception.id == kOverflow) {
      const size_t begin = position - std::min(position, token.size());  // `position` is behind the token
      error_ = absl::StrCat(PlaceOf(text_, begin), ": ", Path(), ": ", token.substr(0, 100),
                            ", must be a number; this one is larger than any");
      return false;
    }
    // "[json.exception.parse_error.101] parse error at line 2, column 5: ...".
    const absl::string_view what = exception.what();
    error_ = std::string(what.substr(std::min(what.find("] ") + 2, what.size())));
    return false;
  }

 private:
  struct Object {
    std::string name;  // of the member that is being read
    std::set<std::string> seen;
  };

  // What reads the values goes down level by level, on the stack.
  bool Enter() {
    if (++depth_ > kMaxDepth)
      error_ = absl::StrCat("objects and lists lie within each other more than ", kMaxDepth, " deep");
    return error_.empty();
  }

  std::string Path() const {
    return absl::StrJoin(open_, ".", [](std::string* out, const Object& object) { out->append(object.name); });
  }

  static constexpr int kMaxDepth = 32;  // a RunSpec has 4

  const absl::string_view text_;
  int depth_ = 0;
  std::vector<Object> open_;
  std::string error_;
};

// Whether `value` has the type of `field`, or of one of its elements. protobuf takes "3" for 3, and null for anything.
bool HasType(const FieldDescriptor& field, const nlohmann::json& value) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL:
      return value.is_boolean();
    case FieldDescriptor::CPPTYPE_STRING:
      return value.is_string();
    case FieldDescriptor::CPPTYPE_ENUM:
      return value.is_string() && field.enum_type()->FindValueByName(value.get<std::string>()) != nullptr;
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return value.is_object();
    default:
      return value.is_number();
  }
}

// Whether protobuf takes `value` for `field` of a message of `type`: numbers within their range.
bool IsTaken(const Descriptor& type, const FieldDescriptor& field, const nlohmann::json& value) {
  auto* factory = google::protobuf::MessageFactory::generated_factory();
  const std::unique_ptr<Message> message(factory->GetPrototype(&type)->New());
  const nlohmann::json member = {{field.name(), value}};
  return google::protobuf::util::JsonStringToMessage(member.dump(), message.get()).ok();
}

absl::Status CheckMembers(const nlohmann::json& object, const Descriptor& type, const std::string& path);

// One value of `field`, alone or of a list, with its own path.
absl::Status CheckElement(const nlohmann::json& value, const FieldDescriptor& field, const std::string& path) {
  if (!HasType(field, value)) {
    const std::string given = value.dump().substr(0, 100);
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", given, ", must be ", TypeWords(field, given)));
  }
  return field.message_type() == nullptr ? absl::OkStatus() : CheckMembers(value, *field.message_type(), path);
}

// Names, types and ranges of the members of `object`, a message of `type`.
absl::Status CheckMembers(const nlohmann::json& object, const Descriptor& type, const std::string& path) {
  std::map<const OneofDescriptor*, const FieldDescriptor*> chosen;
  for (const auto& [name, value] : object.items()) {
    const std::string member_path = JoinPath(path, name);
    const FieldDescriptor* field = type.FindFieldByName(name);
    if (field == nullptr) return absl::InvalidArgumentError(absl::StrCat(member_path, ": ", UnknownFieldText(type)));
    if (const OneofDescriptor* choice = field->real_containing_oneof(); choice != nullptr) {
      const auto [other, is_first] = chosen.emplace(choice, field);
      if (!is_first) {  // in the words of the text format's parser
        return absl::InvalidArgumentError(absl::StrCat(member_path, ": Field \"", name,
                                                       "\" is specified along with field \"", other->second->name(),
                                                       "\", another member of oneof \"", choice->name(), "\"."));
      }
    }
    if (!field->is_repeated()) {
      EPS_RETURN_IF_ERROR(CheckElement(value, *field, member_path));
    } else if (!value.is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(member_path, ": must be a list, each of it ", TypeWords(*field)));
    } else {
      for (size_t i = 0; i < value.size(); ++i) {
        EPS_RETURN_IF_ERROR(CheckElement(value[i], *field, absl::StrCat(member_path, "[", i, "]")));
      }
    }
    if (field->message_type() == nullptr && !IsTaken(type, *field, value)) {
      const std::string given = value.dump().substr(0, 100);
      return absl::InvalidArgumentError(absl::StrCat(member_path, ": ", given, ", must be ", TypeWords(*field, given)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<proto::RunSpec> RunSpecFromJson(const std::string& text) {
  JsonReader reader(text);
  nlohmann::json::sax_parse(text, &reader);
  if (!reader.error().empty()) return absl::InvalidArgumentError(reader.error());
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("not an object: must be {\"model\": {...}, ...}");
  EPS_RETURN_IF_ERROR(CheckMembers(json, *proto::RunSpec::descriptor(), ""));
  proto::RunSpec spec;
  const auto status = google::protobuf::util::JsonStringToMessage(text, &spec);
  if (!status.ok()) return absl::InvalidArgumentError(std::string(status.message()));
  EPS_RETURN_IF_ERROR(CheckValues(spec, ""));
  return spec;
}

}  // namespace eps
