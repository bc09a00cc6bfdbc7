#ifndef EPS_COMMON_CORPUS_TSV_H_
#define EPS_COMMON_CORPUS_TSV_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/corpus/line_reader.h"

// Tables as GLUE has them: fields between tabs, a first line that names the columns, no quoting.
namespace eps {

// Columns by their names. All empty: those that a task of GLUE names so, where there is one way to see it.
struct TsvColumns {
  bool has_header = true;  // false: the first line is a row too, and columns are called "1", "2", ...
  std::string text;
  std::string second_text;  // may be empty beside the others
  std::string label;
};

struct TsvRow {  // parts of the line
  absl::string_view text;
  std::optional<absl::string_view> second_text;
  absl::string_view label;
};

// Where the columns of one file lie.
//
// Threads: safe; fixed after construction.
class TsvTable {
 public:
  // Errors: INVALID_ARGUMENT naming the line's place, the column that is missing or there twice, and those that are there
  static absl::StatusOr<TsvTable> FromFirstLine(const TextLine& line, const TsvColumns& columns);

  // Errors: INVALID_ARGUMENT naming the line's place and how many columns it has, or the column of a label that is
  //         empty or not UTF-8
  absl::StatusOr<TsvRow> Row(const TextLine& line) const;

  bool has_header() const { return has_header_; }
  const std::vector<std::string>& columns() const { return columns_; }
  const std::string& label_column() const { return columns_[label_]; }

 private:
  TsvTable() = default;

  bool has_header_ = true;
  std::vector<std::string> columns_;
  size_t text_ = 0;
  std::optional<size_t> second_text_;
  size_t label_ = 0;
};

// What the labels of all rows mean: their own numbers if all are whole numbers, else the place of their name among all
// of them in order.
class LabelClasses {
 public:
  static constexpr int32_t kMaxClasses = 65536;

  // Looks at one label; `place` names it in errors. Errors: INVALID_ARGUMENT too many classes
  absl::Status Add(absl::string_view label, absl::string_view place);
  // When all were added. Errors: INVALID_ARGUMENT naming the place of a label that is a number and no class
  absl::Status Finish();

  // After Finish; then safe from several threads. nullopt: a label that was not added.
  std::optional<int32_t> ClassOf(absl::string_view label) const;
  // Of class 0, 1, ...; empty where the labels are numbers.
  const std::vector<std::string>& names() const { return names_; }
  int32_t num_classes() const { return num_classes_; }

 private:
  bool has_names_ = false;
  std::string bad_number_;  // what is wrong with the first one, if there is one
  std::map<std::string, int32_t, std::less<>> classes_;
  std::vector<std::string> names_;
  int32_t num_classes_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_TSV_H_
