#include "common/model/json_members.h"

#include <cstddef>
#include <string>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/json_events.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

// Keeps no values.
class MemberReader final : public JsonEvents {
 public:
  const std::string& twice() const { return twice_; }  // with its path; "": there is none

  bool start_object(size_t) override {
    open_.emplace_back();
    return true;
  }
  bool key(string_t& name) override {
    open_.back().name = name;
    if (open_.back().seen.insert(name).second) return true;
    twice_ = absl::StrJoin(open_, ".", [](std::string* out, const Object& object) { out->append(object.name); });
    return false;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }

 private:
  struct Object {
    std::string name;  // of the member that is being read
    std::unordered_set<std::string> seen;
  };
  std::vector<Object> open_;
  std::string twice_;
};

}  // namespace

absl::Status CheckMembersOnce(absl::string_view text) {
  MemberReader reader;
  nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  if (reader.twice().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(reader.twice(), ": given twice"));
}

}  // namespace eps
