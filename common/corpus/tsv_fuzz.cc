#include "common/corpus/tsv.h"

#include <cstdlib>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace {

bool IsPartOf(absl::string_view part, absl::string_view whole) {
  return part.data() >= whole.data() && part.data() + part.size() <= whole.data() + whole.size();
}

}  // namespace

// The fields of a row that is taken are parts of it without a tab, and its label has a class in range, the same for the
// same label.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const absl::string_view input(reinterpret_cast<const char*>(data), num_bytes);
  const size_t end = input.find('\n');
  if (end == absl::string_view::npos) return 0;
  const absl::StatusOr<eps::TsvTable> table = eps::TsvTable::FromFirstLine({.text = input.substr(0, end)}, {});
  if (!table.ok()) return 0;
  eps::LabelClasses classes;
  std::vector<std::string> labels;
  for (const absl::string_view line : absl::StrSplit(input.substr(end + 1), '\n')) {
    const absl::StatusOr<eps::TsvRow> row = table->Row({.text = line});
    if (!row.ok()) continue;
    for (const absl::string_view field : {row->text, row->second_text.value_or(row->text), row->label}) {
      if (!IsPartOf(field, line) || field.find('\t') != absl::string_view::npos) abort();
    }
    if (!classes.Add(row->label, "").ok()) return 0;
    labels.emplace_back(row->label);
  }
  if (!classes.Finish().ok()) return 0;
  for (const std::string& label : labels) {
    const std::optional<int32_t> number = classes.ClassOf(label);
    if (!number || *number < 0 || *number >= classes.num_classes()) abort();
    if (!classes.names().empty() && classes.names()[static_cast<size_t>(*number)] != label) abort();
  }
  return 0;
}
