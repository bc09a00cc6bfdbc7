#include "common/corpus/json_line.h"

#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/json_events.h"
#include "common/base/json_text.h"
#include "common/base/shown_text.h"
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

// The bytes of a text, and how many of them a parser has taken.
class CountedBytes {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountedBytes(const char* next, size_t* num_taken) : next_(next), num_taken_(num_taken) {}

  reference operator*() const { return *next_; }
  CountedBytes& operator++() {
    ++next_;
    ++*num_taken_;
    return *this;
  }
  CountedBytes operator++(int) {
    const CountedBytes before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountedBytes& other) const { return next_ == other.next_; }
  bool operator!=(const CountedBytes& other) const { return next_ != other.next_; }

 private:
  const char* next_;
  size_t* num_taken_;
};

// Finds the first key that its object has had before.
class TwiceFinder final : public JsonEvents {
 public:
  const std::string& name() const { return name_; }  // with what it lies in: "messages[1].role"; "": there is none

  bool start_object(size_t) override { return Open(/*is_object=*/true); }
  bool start_array(size_t) override { return Open(/*is_object=*/false); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool key(string_t& name) override {
    levels_.back().key = name;
    if (levels_.back().seen.insert(name).second) return true;
    for (const Level& level : levels_) {
      if (level.is_object) {
        absl::StrAppend(&name_, name_.empty() ? "" : ".", level.key.empty() ? "\"\"" : EscapeText(level.key));
      } else {
        absl::StrAppend(&name_, "[", level.num_done, "]");
      }
    }
    return false;
  }

 private:
  struct Level {
    bool is_object = false;
    std::string key;                       // of an object: of the member that is read
    std::unordered_set<std::string> seen;  // the same: its keys so far
    size_t num_done = 0;                   // of an array: its values that were read
  };
  bool Open(bool is_object) {
    levels_.emplace_back().is_object = is_object;
    return true;
  }
  bool Close() {
    levels_.pop_back();
    return Count();
  }
  bool Count() {
    if (!levels_.empty()) ++levels_.back().num_done;
    return true;
  }

  std::vector<Level> levels_;
  std::string name_;
};

// Of a string that ends with the quote before `end`.
size_t OpeningQuote(absl::string_view text, size_t end) {
  size_t quote = end - 1;
  size_t backslashes;
  do {
    quote = text.rfind('"', quote - 1);
    backslashes = 0;
    while (backslashes < quote && text[quote - backslashes - 1] == '\\') ++backslashes;
  } while (backslashes % 2 == 1);  // it is one of the string's own
  return quote;
}

// Errors: INVALID_ARGUMENT an object has a key twice, of which the parser would keep the last
absl::Status CheckKeysOnce(const TextLine& line, const json& document) {
  if (CountKeys(line.text) == CountMembers(document)) return absl::OkStatus();
  TwiceFinder finder;
  size_t num_taken = 0;
  json::sax_parse(CountedBytes(line.text.begin(), &num_taken), CountedBytes(line.text.end(), &num_taken), &finder);
  if (finder.name().empty()) return absl::OkStatus();
  TextLine at = line;
  at.offset_bytes += static_cast<int64_t>(OpeningQuote(line.text, num_taken));
  return absl::InvalidArgumentError(absl::StrCat(LinePlace(at), ": ", finder.name(), ": given twice"));
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
