#include "common/samples/class_names.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_writer.h"
#include "common/model/class_name_check.h"
#include "common/samples/place_of_class.h"

namespace eps {
namespace {

constexpr size_t kMaxListBytes = 200;  // in a message

std::string Listed(const std::vector<std::string>& names) {
  const std::string all = absl::StrJoin(names, ", ");
  const absl::string_view shown = CutText(all, kMaxListBytes);
  return absl::StrCat(EscapeText(shown), shown.size() < all.size() ? "..." : "");
}

absl::StatusOr<std::unique_ptr<DocumentIndex>> OpenIndex(const DataConfig& of_tokens) {
  absl::StatusOr<std::unique_ptr<DocumentIndex>> index = DocumentIndex::Open(DocumentIndexPath(of_tokens.path));
  EPS_RETURN_IF_ERROR_WITH(index.status(), absl::StrCat(of_tokens.field, ".documents"));
  return index;
}

// number: of the label, in the index.
absl::Status NoClass(const std::string& label, int32_t number, const DocumentIndex& index,
                     const std::vector<std::string>& names_of_model, const DataConfig& data) {
  return absl::InvalidArgumentError(
      absl::StrCat("model.class_names: the label ", QuoteText(label), " of ", PlaceOfClass(data, index, number),
                   " is none of the model's classes (", Listed(names_of_model),
                   "); for a new head with the table's own names give model.class_names"));
}

// By the names that the file has for its classes.
absl::StatusOr<std::unordered_map<int32_t, int32_t>> NumbersByName(const DocumentIndex& index,
                                                                   const std::vector<std::string>& names_of_model,
                                                                   const DataConfig& data) {
  const std::vector<std::string>& names_in_file = index.class_names();
  std::map<absl::string_view, int32_t> of_name;
  for (size_t i = 0; i < names_of_model.size(); ++i) of_name.emplace(names_of_model[i], i);
  std::unordered_map<int32_t, int32_t> numbers;
  for (size_t i = 0; i < names_in_file.size(); ++i) {
    const auto found = of_name.find(names_in_file[i]);
    const auto number = static_cast<int32_t>(i);
    if (found == of_name.end()) return NoClass(names_in_file[i], number, index, names_of_model, data);
    numbers.emplace(number, found->second);
  }
  return numbers;
}

// Of a table's label that is a whole number; how it was written there, "7" or "007", a file without names does not say.
std::optional<int32_t> WholeNumber(const std::string& name) {
  int32_t number = 0;
  const bool is_whole = std::all_of(name.begin(), name.end(), absl::ascii_isdigit);
  return is_whole && absl::SimpleAtoi(name, &number) ? std::make_optional(number) : std::nullopt;
}

// By the whole numbers that the model has for names. Empty: it has none.
absl::StatusOr<std::unordered_map<int32_t, int32_t>> NumbersByWholeNumber(
    const DocumentIndex& index, const std::vector<std::string>& names_of_model, const DataConfig& data) {
  std::unordered_multimap<int32_t, int32_t> of_whole;
  for (size_t i = 0; i < names_of_model.size(); ++i) {
    if (const auto whole = WholeNumber(names_of_model[i])) of_whole.emplace(*whole, i);
  }
  std::unordered_map<int32_t, int32_t> numbers;
  if (of_whole.empty()) return numbers;
  for (int64_t document = 0; document < index.num_documents(); ++document) {
    const std::optional<int32_t> label = index.label(document);
    if (!label.has_value() || numbers.count(*label) > 0) continue;
    const auto found = of_whole.find(*label);
    if (found == of_whole.end()) return NoClass(absl::StrCat(*label), *label, index, names_of_model, data);
    if (of_whole.count(*label) > 1) {
      return absl::InvalidArgumentError(absl::StrCat("model.class_names: several are the number ", *label, " (",
                                                     Listed(names_of_model), "), and the labels of ", data.users_path(),
                                                     " are numbers: write them as names"));
    }
    numbers.emplace(*label, found->second);
  }
  return numbers;
}

// All names that the run's data have, in their order. Errors: ClassNamesOf's
absl::StatusOr<std::vector<std::string>> NamesInData(const RunConfig& run, const RunConfig& of_tokens) {
  std::set<std::string> all;
  std::string named, numbered;  // files
  for (size_t i = 0; i < run.all_sources().size(); ++i) {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentIndex> index, OpenIndex(of_tokens.all_sources()[i].data));
    const std::vector<std::string>& names = index->class_names();
    (names.empty() ? numbered : named) = run.all_sources()[i].data.path;
    all.insert(names.begin(), names.end());
  }
  if (all.empty()) return std::vector<std::string>();
  if (!numbered.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("model.class_names: missing; the labels of ", named,
                                                   " are names, those of ", numbered, " numbers"));
  }
  ModelConfig model = run.model;
  model.class_names.assign(all.begin(), all.end());
  if (static_cast<int64_t>(all.size()) != model.num_classes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "model.classes: ", model.num_classes, ", but the labels of ", named, " have ", all.size(), " names (",
        Listed(model.class_names), "); where a table does not have all of them, give model.class_names"));
  }
  EPS_RETURN_IF_ERROR_WITH(CheckClassNames(model), named);
  return model.class_names;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ClassNamesOf(const RunConfig& run, const RunConfig& of_tokens) {
  const std::vector<std::string>& names = run.model.class_names;
  if (run.objective() != Objective::kClasses) return std::vector<std::string>();
  if (names.empty()) return NamesInData(run, of_tokens);
  for (size_t i = 0; i < run.all_sources().size(); ++i) {
    EPS_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentIndex> index, OpenIndex(of_tokens.all_sources()[i].data));
    EPS_RETURN_IF_ERROR(NumbersOfClasses(*index, names, of_tokens.all_sources()[i].data).status());
  }
  return names;
}

absl::StatusOr<std::unordered_map<int32_t, int32_t>> NumbersOfClasses(const DocumentIndex& index,
                                                                      const std::vector<std::string>& names_of_model,
                                                                      const DataConfig& data) {
  if (names_of_model.empty()) return std::unordered_map<int32_t, int32_t>();
  return index.class_names().empty() ? NumbersByWholeNumber(index, names_of_model, data)
                                     : NumbersByName(index, names_of_model, data);
}

absl::Status CheckClassesOfEvaluation(const RunConfig& evaluation, const RunConfig& of_tokens) {
  if (evaluation.objective() != Objective::kClasses || !evaluation.model.class_names.empty()) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<DocumentIndex> index, OpenIndex(of_tokens.data));
  if (index->class_names().empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(evaluation.data.path_field, ": the labels of ", evaluation.data.path, " are names (",
                   Listed(index->class_names()),
                   "), but the model's classes are numbers alone, as the labels of the data are: write ",
                   "these numbers in it, or give model.class_names of a new run, in their order"));
}

}  // namespace eps
