#include "common/samples/class_names.h"

#include <algorithm>
#include <memory>
#include <set>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index.h"
#include "common/formats/document_index_writer.h"

namespace eps {
namespace {

constexpr size_t kMaxListBytes = 200;  // in a message

std::string Listed(const std::vector<std::string>& names) {
  return absl::CHexEscape(absl::StrJoin(names, ", ").substr(0, kMaxListBytes));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ClassNamesOf(const RunConfig& run, const RunConfig& of_tokens) {
  if (run.objective() != Objective::kClasses) return std::vector<std::string>();
  std::set<std::string> all;
  std::string named, numbered;  // files
  for (size_t i = 0; i < run.all_sources().size(); ++i) {
    const std::string path = run.all_sources()[i].data.path;
    const DataConfig tokens = of_tokens.all_sources()[i].data;
    const absl::StatusOr<std::unique_ptr<DocumentIndex>> index = DocumentIndex::Open(DocumentIndexPath(tokens.path));
    EPS_RETURN_IF_ERROR_WITH(index.status(), absl::StrCat(tokens.field, ".documents"));
    const std::vector<std::string>& names = (*index)->class_names();
    EPS_RETURN_IF_ERROR(NumbersOfClasses(names, run.model.class_names, path).status());
    (names.empty() ? numbered : named) = path;
    all.insert(names.begin(), names.end());
  }
  if (!run.model.class_names.empty() || all.empty()) return run.model.class_names;
  if (!numbered.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("model.class_names: missing; the labels of ", named,
                                                   " are names, those of ", numbered, " numbers"));
  }
  std::vector<std::string> names(all.begin(), all.end());
  if (static_cast<int64_t>(names.size()) == run.model.num_classes) return names;
  return absl::InvalidArgumentError(absl::StrCat("model.classes: ", run.model.num_classes, ", but the labels of ",
                                                 named, " have ", names.size(), " names (", Listed(names),
                                                 "); where a table does not have all of them, give model.class_names"));
}

absl::StatusOr<std::vector<int32_t>> NumbersOfClasses(const std::vector<std::string>& names_in_file,
                                                      const std::vector<std::string>& names_of_model,
                                                      const std::string& path) {
  std::vector<int32_t> numbers;
  if (names_of_model.empty()) return numbers;
  for (const std::string& name : names_in_file) {
    const auto found = std::find(names_of_model.begin(), names_of_model.end(), name);
    if (found == names_of_model.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.class_names: the label \"", absl::CHexEscape(name), "\" of ", path,
                       " is none of the model's classes (", Listed(names_of_model),
                       "); for a new head with the table's own names give model.class_names"));
    }
    numbers.push_back(static_cast<int32_t>(found - names_of_model.begin()));
  }
  return numbers;
}

}  // namespace eps
