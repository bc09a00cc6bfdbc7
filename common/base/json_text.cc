#include "common/base/json_text.h"

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/json_events.h"
#include "common/base/shown_text.h"

namespace eps {
namespace {

using nlohmann::json;

constexpr absl::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr size_t kMaxShownNumber = 40;

// Where a text goes deeper than `max_depth`; nullopt: nowhere, of a valid document. Up to its first error any other text
// is read as the parser reads it, which goes no further. The library's own callback could count too, but takes
// quadratic time for a list of objects.
std::optional<size_t> FindTooDeep(absl::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;  // what follows ends no string
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > max_depth) return i;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return std::nullopt;
}

// What the library says of an error, without its own name, the column, and the text that it has read:
//   [json.exception.parse_error.101] parse error at line 1, column 10: syntax error while parsing value - invalid literal;
//   last read: '"text": x'
std::string ReasonOf(absl::string_view words) {
  if (const size_t dash = words.find(" - "); dash != absl::string_view::npos) words.remove_prefix(dash + 3);
  const size_t read = words.find("; last read: ");
  if (read == absl::string_view::npos) return EscapeText(words);
  const size_t expected = words.rfind("; expected ");
  const bool says_expected = expected != absl::string_view::npos && expected > read;
  return EscapeText(absl::StrCat(words.substr(0, read), says_expected ? words.substr(expected) : ""));
}

// Reads a text for its first error alone.
class ErrorFinder final : public JsonEvents {
 public:
  size_t position() const { return position_; }
  const std::string& reason() const { return reason_; }

  bool parse_error(size_t position, const std::string& last, const nlohmann::detail::exception& error) override {
    constexpr int kOverflow = 406;  // the library's number of it; the position is behind the number
    if (error.id == kOverflow) {
      position_ = position - last.size();
      const absl::string_view shown = CutText(last, kMaxShownNumber);
      reason_ = absl::StrCat("the number ", shown, shown.size() < last.size() ? "..." : "", " is too large");
      return false;
    }
    position_ = position - (position > 0 ? 1 : 0);  // the library counts from 1
    reason_ = ReasonOf(error.what());
    return false;
  }

 private:
  size_t position_ = 0;
  std::string reason_;
};

// What people write that other parsers take, where the error at `position` is such.
std::optional<std::string> KnownMistake(absl::string_view text, size_t position) {
  const size_t word = text.substr(0, position + 1).find_last_of(" \t\r\n:,[{");
  const absl::string_view literal = text.substr(word == absl::string_view::npos ? 0 : word + 1);
  for (const absl::string_view number : {"NaN", "Infinity", "-Infinity"}) {
    if (absl::StartsWith(literal, number)) return absl::StrCat(number, " is no number of JSON; write null");
  }
  if (position >= text.size() || (text[position] != '}' && text[position] != ']')) return std::nullopt;
  const absl::string_view before = absl::StripTrailingAsciiWhitespace(text.substr(0, position));
  if (!absl::EndsWith(before, ",")) return std::nullopt;
  return absl::StrCat("a comma before ", text.substr(position, 1));
}

JsonError SyntaxError(absl::string_view text) {
  constexpr absl::string_view kZero = "a zero byte, as a file that was not written whole may have";
  const std::string problem = "not valid JSON";
  ErrorFinder finder;
  json::sax_parse(text.begin(), text.end(), &finder);
  // The library takes a zero byte for the end.
  const size_t zero = text.find('\0');
  const bool ends_at_zero = zero != absl::string_view::npos && (finder.reason().empty() || finder.position() == zero);
  if (ends_at_zero) return {zero, problem, std::string(kZero)};
  return {finder.position(), problem, KnownMistake(text, finder.position()).value_or(finder.reason())};
}

bool IsEmpty(absl::string_view text) {
  return absl::StripAsciiWhitespace(absl::StripPrefix(text, kByteOrderMark)).empty();
}

absl::Status ToStatus(const JsonError& error) {
  if (error.offset_bytes == 0 && error.reason.empty()) return absl::InvalidArgumentError(error.problem);
  return absl::InvalidArgumentError(absl::StrCat(error.problem, " at byte offset ", error.offset_bytes,
                                                 error.reason.empty() ? "" : ": ", error.reason));
}

JsonError TooDeep(size_t offset_bytes, int max_depth) {
  return {offset_bytes, absl::StrCat("JSON nested too deeply: more than ", max_depth, " levels"), ""};
}

}  // namespace

absl::StatusOr<json> ParseJson(absl::string_view text, int max_depth) {
  if (const auto offset = FindTooDeep(text, max_depth)) return ToStatus(TooDeep(*offset, max_depth));
  if (IsEmpty(text)) return absl::InvalidArgumentError("is empty, must be JSON");
  json document = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  // A zero byte stands nowhere in JSON.
  if (document.is_discarded() || absl::StrContains(text, '\0')) return ToStatus(SyntaxError(text));
  return document;
}

std::optional<JsonError> FindJsonError(absl::string_view text, int max_depth) {
  if (const auto offset = FindTooDeep(text, max_depth)) return TooDeep(*offset, max_depth);
  if (IsEmpty(text)) return JsonError{0, "is empty, must be JSON", ""};
  const JsonError error = SyntaxError(text);
  if (error.reason.empty()) return std::nullopt;
  return error;
}

}  // namespace eps
