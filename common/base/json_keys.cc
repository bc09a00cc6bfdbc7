#include "common/base/json_keys.h"

#include <iterator>
#include <unordered_set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json_events.h"
#include "common/base/shown_text.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

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

}  // namespace

std::optional<KeyTwice> FindKeyTwice(absl::string_view text) {
  TwiceFinder finder;
  size_t num_taken = 0;
  nlohmann::json::sax_parse(CountedBytes(text.begin(), &num_taken), CountedBytes(text.end(), &num_taken), &finder);
  if (finder.name().empty()) return std::nullopt;
  return KeyTwice{.name = finder.name(), .offset_bytes = OpeningQuote(text, num_taken)};
}

absl::Status CheckKeysOnce(absl::string_view text) {
  const std::optional<KeyTwice> twice = FindKeyTwice(text);
  if (!twice.has_value()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(twice->name, ": given twice"));
}

}  // namespace eps
