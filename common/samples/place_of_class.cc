#include "common/samples/place_of_class.h"

#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/corpus/line_reader.h"
#include "common/corpus/tsv.h"

namespace eps {
namespace {

bool IsClass(absl::string_view label, const DocumentIndex& index, int32_t number) {
  if (const auto& names = index.class_names(); !names.empty()) return label == names[static_cast<size_t>(number)];
  int32_t value = 0;
  return absl::SimpleAtoi(label, &value) && value == number;
}

// "" where it cannot be told any more, such as of a file that is gone.
std::string PlaceInTable(const DataConfig& data, const DocumentIndex& index, int32_t number) {
  const absl::StatusOr<std::unique_ptr<LineReader>> reader = LineReader::Open(data.made_from);
  if (!reader.ok()) return "";
  std::optional<TsvTable> table;
  for (TextLine line;;) {
    const absl::StatusOr<bool> found = (*reader)->Next(line);
    if (absl::IsInvalidArgument(found.status())) continue;  // a line that was left out
    if (!found.ok() || !*found) return "";
    if (!table.has_value()) {
      const absl::StatusOr<TsvTable> first = TsvTable::FromFirstLine(line, {.has_header = data.has_table_header,
                                                                            .text = data.text_column,
                                                                            .second_text = data.second_text_column,
                                                                            .label = data.label_column});
      if (!first.ok()) return "";
      table = *first;
      if (data.has_table_header) continue;
    }
    const absl::StatusOr<TsvRow> row = table->Row(line);
    if (row.ok() && IsClass(row->label, index, number)) return LinePlace(line);
  }
}

}  // namespace

std::string PlaceOfClass(const DataConfig& data, const DocumentIndex& index, int32_t number) {
  const std::string place = data.made_from.empty() ? "" : PlaceInTable(data, index, number);
  if (!place.empty()) return absl::StrCat(data.made_from, ", ", place, ",");
  int64_t document = 0;
  while (document + 1 < index.num_documents() && index.label(document) != number) ++document;
  return data.DocumentName(document);
}

}  // namespace eps
