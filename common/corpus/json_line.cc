#include "common/corpus/json_line.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kEscapeBytes = 6;  // "\ud83d"

// What the library says of an error, without its own name, the column, and the text that it has read:
//   [json.exception.parse_error.101] parse error at line 1, column 10: syntax error while parsing value - invalid literal;
//   last read: '"text": x'
std::string ReasonOf(absl::string_view words) {
  if (const size_t dash = words.find(" - "); dash != absl::string_view::npos) words.remove_prefix(dash + 3);
  const size_t read = words.find("; last read: ");
  if (read == absl::string_view::npos) return absl::CHexEscape(words);
  const size_t expected = words.rfind("; expected ");
  const bool says_expected = expected != absl::string_view::npos && expected > read;
  return absl::CHexEscape(absl::StrCat(words.substr(0, read), says_expected ? words.substr(expected) : ""));
}

// Reads a text for its first error alone.
class ErrorFinder final : public nlohmann::json_sax<json> {
 public:
  size_t position() const { return position_; }
  const std::string& reason() const { return reason_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
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
  const size_t word = text.substr(0, position + 1).find_last_of(" \t:,[{");
  const absl::string_view literal = text.substr(word == absl::string_view::npos ? 0 : word + 1);
  for (const absl::string_view number : {"NaN", "Infinity", "-Infinity"}) {
    if (absl::StartsWith(literal, number)) return absl::StrCat(number, " is no number of JSON; write null");
  }
  if (position >= text.size() || (text[position] != '}' && text[position] != ']')) return std::nullopt;
  const absl::string_view before = absl::StripTrailingAsciiWhitespace(text.substr(0, position));
  if (!absl::EndsWith(before, ",")) return std::nullopt;
  return absl::StrCat("a comma before ", text.substr(position, 1));
}

absl::Status SyntaxError(const absl::Status& error, const TextLine& line) {
  ErrorFinder finder;
  json::sax_parse(line.text.begin(), line.text.end(), &finder);
  TextLine place = line;
  place.offset_bytes += static_cast<int64_t>(finder.position());
  const std::string reason = KnownMistake(line.text, finder.position()).value_or(finder.reason());
  return absl::InvalidArgumentError(
      absl::StrCat(LinePlace(place), ": ", error.message(), reason.empty() ? "" : ": ", reason));
}

// The code unit of the escape that `text` begins with: "\ud83d".
std::optional<uint32_t> CodeUnit(absl::string_view text) {
  if (text.size() < kEscapeBytes || !absl::StartsWith(text, "\\u")) return std::nullopt;
  uint32_t unit = 0;
  for (const char c : text.substr(2, 4)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return std::nullopt;
    unit = unit * 16 + static_cast<uint32_t>(absl::ascii_isdigit(static_cast<unsigned char>(c))
                                                 ? c - '0'
                                                 : absl::ascii_tolower(static_cast<unsigned char>(c)) - 'a' + 10);
  }
  return unit;
}

bool IsHigh(std::optional<uint32_t> unit) { return unit && *unit >= 0xD800 && *unit <= 0xDBFF; }
bool IsLow(std::optional<uint32_t> unit) { return unit && *unit >= 0xDC00 && *unit <= 0xDFFF; }

// Writes U+FFFD over escapes of lone surrogates, which take as many bytes, and counts them. Of a text that is not JSON
// anything may come out that is as long.
int64_t ReplaceLoneSurrogates(std::string& text) {
  int64_t count = 0;
  for (size_t at = text.find('\\'); at != std::string::npos && at + 1 < text.size(); at = text.find('\\', at)) {
    const absl::string_view rest = absl::string_view(text).substr(at);
    const std::optional<uint32_t> unit = CodeUnit(rest);
    if (!unit) {
      at += 2;  // what follows is escaped
    } else if (IsHigh(unit) && IsLow(CodeUnit(rest.substr(kEscapeBytes)))) {
      at += 2 * kEscapeBytes;
    } else {
      if (IsHigh(unit) || IsLow(unit)) {
        text.replace(at, kEscapeBytes, "\\ufffd");
        ++count;
      }
      at += kEscapeBytes;
    }
  }
  return count;
}

}  // namespace

absl::StatusOr<JsonLine> ParseJsonLine(const TextLine& line) {
  JsonLine result;
  TextLine whole = line;
  std::string repaired;
  if (absl::StrContains(line.text, "\\u")) {
    repaired = std::string(line.text);
    result.replaced_surrogates = ReplaceLoneSurrogates(repaired);
    whole.text = repaired;
  }
  absl::StatusOr<json> document = ParseJson(whole.text, kMaxDepth);
  if (!document.ok()) return SyntaxError(document.status(), whole);
  if (document->is_object()) {
    result.object = *std::move(document);
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(LinePlace(line), ": is ", document->type_name(), ", must be an object; JSONL has one on each line"));
}

}  // namespace eps
