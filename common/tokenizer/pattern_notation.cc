#include "common/tokenizer/pattern_notation.h"

#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

// \w as Oniguruma's; within a class. Of Latin-1 it has superscripts and fractions too, and of no other numbers.
constexpr char kWord[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";

// Walks over a pattern once, and writes it anew.
class Translator {
 public:
  explicit Translator(absl::string_view regex) : regex_(regex) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < regex_.size()) EPS_RETURN_IF_ERROR(in_class_ ? OneInClass() : One());
    return std::move(out_);
  }

 private:
  absl::Status Refuse(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat("pattern, byte ", at_, ": ", what));
  }
  bool Ahead(absl::string_view text) const { return regex_.substr(at_, text.size()) == text; }
  void Copy(size_t num_bytes) {
    out_.append(regex_.data() + at_, num_bytes);
    at_ += num_bytes;
  }

  absl::Status One() {
    switch (regex_[at_]) {
      case '\\':
        return Escape();
      case '^':
      case '$':
        return Refuse("^ and $ are of a line for some and of the text for others; write (?<![\\s\\S]) or (?![\\s\\S])");
      case '[':
        return OpenClass();
      case '(':
        return Group();
      case '}':
        Copy(1);
        if (Ahead("+")) return Refuse("}+ is possessive for some and a repetition for others; write (?>...)");
        if (Ahead("?")) return Refuse("}? is lazy for some and a repetition for others; write *? or (?:...)?");
        return absl::OkStatus();
      case '{':
        if (Ahead("{,")) return Refuse("{,n} is a repetition for some and plain text for others; write {0,n}");
        Copy(1);
        return absl::OkStatus();
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  // Groups that all three know. Others count captures, call back or are named.
  absl::Status Group() {
    if (Ahead("(*")) return Refuse("(* is a verb for some");
    if (!Ahead("(?")) {
      Copy(1);
      return absl::OkStatus();
    }
    for (absl::string_view known : {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i:", "(?i)"}) {
      if (!Ahead(known) || (known == "(?i)" && at_ != 0)) continue;
      Copy(known.size());
      return absl::OkStatus();
    }
    return Refuse("this kind of group is not supported; (?: (?= (?! (?<= (?<! (?> (?i: are, and (?i) in front");
  }

  absl::Status OpenClass() {
    Copy(1);
    if (Ahead("^")) Copy(1);
    if (Ahead("]")) return Refuse("] as the first of a class; write \\]");
    in_class_ = true;
    return absl::OkStatus();
  }

  absl::Status OneInClass() {
    if (Ahead("\\")) return Escape();
    if (Ahead("[")) return Refuse("[ within a class is a class of its own for some; write \\[");
    if (Ahead("&&") || Ahead("--") || Ahead("~~")) return Refuse("sets of classes are not supported");
    if (Ahead("]")) in_class_ = false;
    Copy(1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (at_ + 1 == regex_.size()) return Refuse("\\ at the end");
    const char c = regex_[at_ + 1];
    switch (c) {
      case 's':  // PCRE2's own takes U+180E too
        return Put("\\p{White_Space}");
      case 'S':
        return Put("\\P{White_Space}");
      case 'w':  // PCRE2's own has neither marks nor letters in circles
        return Put(in_class_ ? kWord : absl::StrCat("[", kWord, "]"));
      case 'W':
        if (in_class_) return Refuse("\\W within a class is not supported");
        return Put(absl::StrCat("[^", kWord, "]"));
      case 'v':
        return Put("\\x0B");  // PCRE2's own is any line's end
      case 'd':
      case 'D':
      case 'r':
      case 'n':
      case 't':
      case 'f':
        Copy(2);
        return absl::OkStatus();
      case 'p':
      case 'P':
        return Property();
      case 'u':
        return Hex(2, 4);
      case 'x':
        return Hex(2, Ahead("\\x{") ? 0 : 2);
      default:
        if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || static_cast<unsigned char>(c) >= 0x80) {
          return Refuse(absl::StrCat("\\", absl::string_view(&c, 1), " is not supported"));
        }
        Copy(2);
        return absl::OkStatus();
    }
  }

  absl::Status Put(absl::string_view text) {
    out_.append(text.data(), text.size());
    at_ += 2;
    return absl::OkStatus();
  }

  // \p{Han} is of that script; PCRE2's own takes what it is used with, too. Categories have one letter or two.
  absl::Status Property() {
    constexpr size_t kCategoryLetters = 2;
    const size_t close = regex_.find('}', at_);
    if (regex_.substr(at_ + 2, 1) != "{" || close == absl::string_view::npos) return Refuse("\\p without {...}");
    absl::string_view name = regex_.substr(at_ + 3, close - at_ - 3);
    const bool negated = (regex_[at_ + 1] == 'P') != (name.substr(0, 1) == "^");
    if (name.substr(0, 1) == "^") name.remove_prefix(1);
    for (const char c : name) {
      if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_') return Refuse("not a property's name");
    }
    const bool is_script = name.size() > kCategoryLetters && name != "White_Space" && name != "Alphabetic" &&
                           name != "Emoji" && name != "Extended_Pictographic";
    absl::StrAppend(&out_, negated ? "\\P{" : "\\p{", is_script ? "sc:" : "", name, "}");
    at_ = close + 1;
    return absl::OkStatus();
  }

  // \xHH, \uHHHH, or with no digits fixed \x{H...}.
  absl::Status Hex(size_t prefix, size_t num_digits) {
    size_t begin = at_ + prefix, end = begin + num_digits;
    if (num_digits == 0) {
      ++begin;
      end = regex_.find('}', begin);
      if (end == absl::string_view::npos) return Refuse("\\x{ without }");
    }
    if (end > regex_.size() || end == begin) return Refuse("too few hexadecimal digits");
    const absl::string_view digits = regex_.substr(begin, end - begin);
    for (const char c : digits) {
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return Refuse("not a hexadecimal digit");
    }
    // Oniguruma reads \xE9 as a byte, fancy-regex as U+00E9.
    if (num_digits == 2 && digits[0] >= '8') return Refuse("\\xHH above 7F is a byte for some; write \\x{...}");
    absl::StrAppend(&out_, "\\x{", digits, "}");
    at_ = end + (num_digits == 0 ? 1 : 0);
    return absl::OkStatus();
  }

  const absl::string_view regex_;
  size_t at_ = 0;
  bool in_class_ = false;
  std::string out_;
};

}  // namespace

absl::StatusOr<std::string> ToPcre2Notation(absl::string_view regex) { return Translator(regex).Run(); }

}  // namespace eps
