#include "common/corpus/tsv.h"

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace eps {
namespace {

// The pairs of columns by which GLUE's tasks name their texts; a task of one text has the first alone.
struct TextColumns {
  absl::string_view first;
  absl::string_view second;
};
constexpr std::array<TextColumns, 7> kTextColumns = {{{"sentence1", "sentence2"},  // MNLI, RTE, WNLI, STS-B
                                                      {"question1", "question2"},  // QQP
                                                      {"question", "sentence"},    // QNLI
                                                      {"#1 String", "#2 String"},  // MRPC
                                                      {"premise", "hypothesis"},   // as in the data sets hub
                                                      {"sentence", ""},            // SST-2
                                                      {"text", ""}}};
constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr std::array<absl::string_view, 4> kLabelColumns = {"label", "gold_label", "is_duplicate", "Quality"};

bool IsWhole(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(),
                                      [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)); });
}

}  // namespace

absl::StatusOr<TsvTable> TsvTable::FromFirstLine(const TextLine& line, const TsvColumns& wanted) {
  TsvTable table;
  table.has_header_ = wanted.has_header;
  table.columns_ = absl::StrSplit(absl::StripPrefix(line.text, kByteOrderMark), '\t');
  for (size_t i = 0; !wanted.has_header && i < table.columns_.size(); ++i) table.columns_[i] = absl::StrCat(i + 1);
  const auto bad = [&](absl::string_view what) {
    std::vector<std::string> shown;
    for (const std::string& name : table.columns_) shown.push_back(QuoteText(name));
    if (shown.size() > 20) shown.resize(20);
    return absl::InvalidArgumentError(
        absl::StrCat(LinePlace(line), ": ", what, "; its columns are ", absl::StrJoin(shown, ", ")));
  };
  const auto has = [&](absl::string_view name) {
    return std::count(table.columns_.begin(), table.columns_.end(), name) == 1;
  };
  TsvColumns columns = wanted;
  if (columns.text.empty()) {
    const auto known = std::find_if(kTextColumns.begin(), kTextColumns.end(), [&](const TextColumns& pair) {
      return has(pair.first) && (pair.second.empty() || has(pair.second));
    });
    if (known == kTextColumns.end()) return bad("which column is the text has to be said");
    columns.text = std::string(known->first);
    if (columns.second_text.empty()) columns.second_text = std::string(known->second);
  }
  if (columns.label.empty()) {
    const auto known = std::find_if(kLabelColumns.begin(), kLabelColumns.end(), has);
    if (known == kLabelColumns.end() && has("score")) {
      return bad("a score is no class: regression, as of STS-B, is not trained");
    }
    if (known == kLabelColumns.end()) return bad("which column is the label has to be said");
    columns.label = std::string(*known);
  }
  const auto index_of = [&](const std::string& name) -> absl::StatusOr<size_t> {
    const auto found = std::find(table.columns_.begin(), table.columns_.end(), name);
    if (found == table.columns_.end()) return bad(absl::StrCat("there is no column ", QuoteText(name)));
    if (!has(name)) return bad(absl::StrCat("column ", QuoteText(name), " is there twice"));
    return static_cast<size_t>(found - table.columns_.begin());
  };
  EPS_ASSIGN_OR_RETURN(table.text_, index_of(columns.text));
  EPS_ASSIGN_OR_RETURN(table.label_, index_of(columns.label));
  if (!columns.second_text.empty()) {
    EPS_ASSIGN_OR_RETURN(table.second_text_, index_of(columns.second_text));
  }
  // A label that can be read in the text is all that would be learnt.
  const auto twice = [&](absl::string_view a, absl::string_view b, size_t column) {
    return bad(absl::StrCat("column ", QuoteText(table.columns_[column]), " is taken for ", a, " and for ", b));
  };
  if (table.text_ == table.label_) return twice("the text", "the label", table.text_);
  if (table.second_text_ == table.label_) return twice("the second text", "the label", table.label_);
  if (table.second_text_ == table.text_) return twice("the text", "the second text", table.text_);
  return table;
}

absl::StatusOr<TsvRow> TsvTable::Row(const TextLine& line) const {
  const bool may_be_marked = !has_header_ && line.offset_bytes == 0;
  const absl::string_view text = may_be_marked ? absl::StripPrefix(line.text, kByteOrderMark) : line.text;
  const std::vector<absl::string_view> fields = absl::StrSplit(text, '\t');
  if (fields.size() != columns_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(LinePlace(line), ": ", fields.size(), " columns, must be ",
                                                   columns_.size(), " as in the first line"));
  }
  TsvRow row{.text = fields[text_], .label = fields[label_]};
  if (second_text_) row.second_text = fields[*second_text_];
  const auto bad_label = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat(LinePlace(line), ": column ", QuoteText(columns_[label_]), ": ", what));
  };
  if (row.label.empty()) return bad_label("empty");
  if (!IsWellFormed(row.label)) {
    // It would be written to config.json, which is UTF-8.
    return bad_label(absl::StrCat(QuoteText(row.label), " is not UTF-8; of a table in Latin-1, ",
                                  "`iconv -f ISO-8859-1 -t UTF-8` makes it so"));
  }
  return row;
}

absl::Status LabelClasses::Add(absl::string_view label, absl::string_view place) {
  if (classes_.find(label) != classes_.end()) return absl::OkStatus();
  int32_t number = 0;
  double value = 0;
  const bool is_class = IsWhole(label) && absl::SimpleAtoi(label, &number) && number < kMaxClasses;
  if (!is_class && absl::SimpleAtod(label, &value)) {
    // Only an error where there are no names: "3.5" or "nan" can be one among others.
    if (bad_number_.empty()) {
      bad_number_ = absl::StrCat(place, ": ", QuoteText(label), ", must be a class: a whole number in [0, ",
                                 kMaxClasses, "), or a name; regression, as of STS-B, is not trained");
    }
  } else if (!is_class) {
    has_names_ = true;
  }
  classes_.emplace(std::string(label), number);
  if (classes_.size() <= static_cast<size_t>(kMaxClasses)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(place, ": more than ", kMaxClasses, " classes"));
}

absl::Status LabelClasses::Finish() {
  if (has_names_) {
    for (auto& [name, number] : classes_) {  // in order
      number = static_cast<int32_t>(names_.size());
      names_.push_back(name);
    }
    num_classes_ = static_cast<int32_t>(names_.size());
    return absl::OkStatus();
  }
  if (!bad_number_.empty()) return absl::InvalidArgumentError(bad_number_);
  for (const auto& [name, number] : classes_) num_classes_ = std::max(num_classes_, number + 1);
  return absl::OkStatus();
}

std::optional<int32_t> LabelClasses::ClassOf(absl::string_view label) const {
  const auto found = classes_.find(label);
  if (found == classes_.end()) return std::nullopt;
  return found->second;
}

}  // namespace eps
