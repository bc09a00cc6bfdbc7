#include "common/corpus/json_line.h"

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/json_keys.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 64;
constexpr size_t kEscapeBytes = 6;  // "\ud83d"

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

// Of all objects in the value, which is as deep as kMaxDepth at most.
size_t CountMembers(const json& value) {
  if (!value.is_structured()) return 0;
  size_t count = value.is_object() ? value.size() : 0;
  for (const json& part : value) count += CountMembers(part);
  return count;
}

// The same of a text that is JSON: a colon stands behind each key, and nowhere else but in strings.
size_t CountKeys(absl::string_view text) {
  size_t count = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;  // what follows ends no string
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == ':') {
      ++count;
    }
  }
  return count;
}

// The parser keeps the last one of a key that an object has twice. Errors: INVALID_ARGUMENT naming it
absl::Status CheckKeysOnce(const TextLine& line, const json& document) {
  if (CountKeys(line.text) == CountMembers(document)) return absl::OkStatus();  // nearly always, and faster
  const std::optional<KeyTwice> twice = FindKeyTwice(line.text);
  if (!twice.has_value()) return absl::OkStatus();
  TextLine at = line;
  at.offset_bytes += static_cast<int64_t>(twice->offset_bytes);
  return absl::InvalidArgumentError(absl::StrCat(LinePlace(at), ": ", twice->name, ": given twice"));
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
  if (!document.ok()) {
    const JsonError error = FindJsonError(whole.text, kMaxDepth).value_or(JsonError());
    whole.offset_bytes += static_cast<int64_t>(error.offset_bytes);
    return absl::InvalidArgumentError(
        absl::StrCat(LinePlace(whole), ": ", error.problem, error.reason.empty() ? "" : ": ", error.reason));
  }
  EPS_RETURN_IF_ERROR(CheckKeysOnce(whole, *document));
  if (document->is_object()) {
    result.object = *std::move(document);
    return result;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(LinePlace(line), ": is ", document->type_name(), ", must be an object; JSONL has one on each line"));
}

}  // namespace eps
