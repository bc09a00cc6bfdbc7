#include "cli/json_member.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

constexpr absl::string_view kSpace = " \t\r\n";

// Walks over the members of a valid object, one behind the other.
class MemberReader {
 public:
  explicit MemberReader(absl::string_view object) : text_(object), at_(object.find('{') + 1) {}

  // False at the end, where at() is the closing brace.
  bool Next() {
    SkipAnyOf(" \t\r\n,");
    if (text_[at_] == '}') return false;
    const size_t name_begin = at_;
    SkipString();
    name_ = nlohmann::json::parse(text_.substr(name_begin, at_ - name_begin)).get<std::string>();
    SkipAnyOf(" \t\r\n:");
    value_begin_ = at_;
    SkipValue();
    value_end_ = at_;
    return true;
  }

  const std::string& name() const { return name_; }
  size_t value_begin() const { return value_begin_; }
  size_t value_end() const { return value_end_; }  // 0: there was no member
  size_t at() const { return at_; }

 private:
  void SkipAnyOf(absl::string_view characters) { at_ = text_.find_first_not_of(characters, at_); }
  void SkipString() {
    for (++at_; text_[at_] != '"'; ++at_) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
  }
  void SkipValue() {
    int depth = 0;
    do {
      const char c = text_[at_];
      if (c == '"') {
        SkipString();
        continue;
      }
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      ++at_;
    } while (depth > 0 || !EndsHere());
  }
  // Of a value that is no object and no array, behind which comes this.
  bool EndsHere() const { return text_[at_] == ',' || text_[at_] == '}' || kSpace.find(text_[at_]) != kSpace.npos; }

  const absl::string_view text_;
  size_t at_;
  std::string name_;
  size_t value_begin_ = 0, value_end_ = 0;
};

}  // namespace

std::optional<absl::string_view> FindMember(absl::string_view object, absl::string_view name) {
  std::optional<absl::string_view> found;
  for (MemberReader member(object); member.Next();) {
    if (member.name() == name) {
      found = object.substr(member.value_begin(), member.value_end() - member.value_begin());
    }
  }
  return found;
}

std::string WithMember(absl::string_view object, absl::string_view name, absl::string_view value) {
  if (const std::optional<absl::string_view> old = FindMember(object, name)) {
    const auto begin = static_cast<size_t>(old->data() - object.data());
    return absl::StrCat(object.substr(0, begin), value, object.substr(begin + old->size()));
  }
  MemberReader members(object);
  while (members.Next()) {
  }
  const bool is_first = members.value_end() == 0;
  const size_t end = is_first ? members.at() : members.value_end();
  return absl::StrCat(object.substr(0, end), is_first ? "\n  " : ",\n  ", nlohmann::json(std::string(name)).dump(),
                      ": ", value, is_first ? "\n" : "", object.substr(end));
}

}  // namespace eps::cli
