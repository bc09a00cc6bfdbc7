#include "common/choices/choices.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace eps {
namespace {

absl::Status Wrong(absl::string_view field, size_t index, absl::string_view part, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(field, "[", index, "].", part, ": ", what));
}

absl::Status CheckText(const std::string& text, size_t most_bytes, absl::string_view field, size_t index,
                       absl::string_view part) {
  if (text.empty() || text.size() > most_bytes) {
    return Wrong(field, index, part, absl::StrCat(text.size(), " bytes, want 1 to ", most_bytes));
  }
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); });
  return printable ? absl::OkStatus() : Wrong(field, index, part, "has bytes that are no printable ASCII");
}

}  // namespace

absl::StatusOr<Choices> CheckedChoices(absl::Span<const std::pair<std::string, std::string>> pairs,
                                       absl::string_view field) {
  if (pairs.size() > kMaxChoices) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", pairs.size(), " of them, at most ", kMaxChoices));
  }
  Choices choices;
  size_t num_bytes = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const auto& [key, value] = pairs[i];
    if (absl::Status status = CheckText(key, kMaxChoiceKeyBytes, field, i, "key"); !status.ok()) return status;
    if (absl::Status status = CheckText(value, kMaxChoiceValueBytes, field, i, "value"); !status.ok()) return status;
    num_bytes += key.size() + value.size();
    if (!choices.emplace(key, value).second) return Wrong(field, i, "key", absl::StrCat("\"", key, "\" comes twice"));
  }
  if (num_bytes > kMaxChoicesBytes) {
    return absl::InvalidArgumentError(absl::StrCat(field, ": ", num_bytes, " bytes, at most ", kMaxChoicesBytes));
  }
  return choices;
}

}  // namespace eps
