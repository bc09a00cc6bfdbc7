#ifndef EPS_COMMON_TOKENIZER_TEXT_PATTERN_H_
#define EPS_COMMON_TOKENIZER_TEXT_PATTERN_H_

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/utf8.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/pattern.h"

namespace eps {

// What tokenizer.json calls a pattern: {"String": " "}, taken literally, or {"Regex": "\\s+"}.
//
// Threads: safe
class TextPattern {
 public:
  static absl::StatusOr<TextPattern> FromJson(const JsonNode& node);
  static TextPattern Literal(absl::string_view text) { return TextPattern(std::string(text)); }
  // Errors: Pattern::Create's
  static absl::StatusOr<TextPattern> Regex(absl::string_view regex);

  // The first match from `from` on. An empty literal is nowhere.
  bool Find(absl::string_view text, size_t from, PatternScratch& scratch, Pattern::Match& match) const;
  // `each(match)`, from left to right; one of nothing right behind another match is none, as Oniguruma has it.
  template <typename Each>
  void ForEachMatch(absl::string_view text, PatternScratch& scratch, const Each& each) const {
    Pattern::Match match;
    size_t behind = absl::string_view::npos;  // where the last one ends
    for (size_t from = 0; from <= text.size() && Find(text, from, scratch, match);) {
      const bool is_empty = match.begin == match.end;
      if (!is_empty || match.begin != behind) each(match);
      from = behind = match.end;
      if (!is_empty) continue;
      if (from == text.size()) return;
      NextCodePoint(text, from);  // the same place would match again
    }
  }
  // Every match has become `content`.
  void ReplaceAll(std::string& text, absl::string_view content, PatternScratch& scratch) const;

 private:
  explicit TextPattern(std::string literal) : literal_(std::move(literal)) {}
  explicit TextPattern(Pattern regex) : regex_(std::move(regex)) {}

  std::string literal_;
  std::optional<Pattern> regex_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_TEXT_PATTERN_H_
