#ifndef EPS_COMMON_TOKENIZER_PATTERN_H_
#define EPS_COMMON_TOKENIZER_PATTERN_H_

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// What one search needs and leaves behind. For one thread at a time.
class PatternScratch {
 public:
  PatternScratch();
  ~PatternScratch();
  PatternScratch(PatternScratch&&) noexcept;
  PatternScratch& operator=(PatternScratch&&) noexcept;

 private:
  friend class Pattern;
  struct State;
  std::unique_ptr<State> state_;
};

// A regular expression over well-formed UTF-8, in the part of the notation that Oniguruma, fancy-regex and PCRE2 share,
// which tokenizers' patterns keep to. Searched by PCRE2, compiled to machine code.
//
// What the three read in different ways is either put right (\s, \w, scripts) or refused (\h, \b, `{1,3}+`, ^ and $,
// classes within classes, backreferences): two tokenizers that differ only now and then are worse than none.
//
// Threads: safe; each search has its own scratch
class Pattern {
 public:
  struct Match {
    size_t begin, end;  // bytes
  };

  // Errors: INVALID_ARGUMENT naming the byte in `regex`
  static absl::StatusOr<Pattern> Create(absl::string_view regex);
  ~Pattern();
  Pattern(Pattern&&) noexcept;
  Pattern& operator=(Pattern&&) noexcept;

  // The first match from `from` on, which is where a code point begins. False: there is none, the text is empty, or given
  // up after so many steps that only a pattern with exponential backtracking takes them.
  bool Find(absl::string_view text, size_t from, PatternScratch& scratch, Match& match) const;

 private:
  struct Code;
  explicit Pattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_PATTERN_H_
