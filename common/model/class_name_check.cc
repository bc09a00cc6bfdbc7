#include "common/model/class_name_check.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/shown_text.h"
#include "common/base/utf8.h"

namespace eps {
namespace {

constexpr size_t kMaxClassNameBytes = 256;
// All together, so that config.json, which has each twice, and a run, which goes to each worker, stay of a size that is
// read.
constexpr size_t kMaxAllClassNamesBytes = size_t{1} << 20;

}  // namespace

absl::Status CheckClassNames(const ModelConfig& config) {
  const auto num_names = static_cast<int64_t>(config.class_names.size());
  if (num_names > 0 && num_names != config.num_classes) {
    return absl::InvalidArgumentError(
        absl::StrCat("model.class_names: ", num_names, " names, but model.classes is ", config.num_classes));
  }
  std::set<absl::string_view> before;
  size_t all_bytes = 0;
  for (const std::string& name : config.class_names) {
    const std::string shown = QuoteText(name, kMaxClassNameBytes);
    if (name.empty() || name.size() > kMaxClassNameBytes) {
      return absl::InvalidArgumentError(absl::StrCat("model.class_names: ", shown, " has ", name.size(),
                                                     " bytes, must have 1 to ", kMaxClassNameBytes));
    }
    if (!IsWellFormed(name)) {
      return absl::InvalidArgumentError(absl::StrCat("model.class_names: ", shown, " is not UTF-8"));
    }
    if (!before.insert(name).second) {
      return absl::InvalidArgumentError(absl::StrCat("model.class_names: ", shown, " is there twice"));
    }
    all_bytes += name.size();
  }
  if (all_bytes <= kMaxAllClassNamesBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("model.class_names: ", all_bytes, " bytes in all, must be at most ",
                                                 kMaxAllClassNamesBytes, "; take shorter names, or numbers"));
}

}  // namespace eps
