#ifndef EPS_COMMON_TOKENIZER_SPLITTER_H_
#define EPS_COMMON_TOKENIZER_SPLITTER_H_

#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/text_pattern.h"

namespace eps {

// Cuts a text where a pattern matches. What happens to a match and to what lies between, for "a--b" and the pattern "-":
enum class SplitBehavior {
  kRemoved,             // a b
  kIsolated,            // a - - b
  kMergedWithPrevious,  // a- - b
  kMergedWithNext,      // a - -b
  kContiguous,          // a -- b
};
absl::StatusOr<SplitBehavior> SplitBehaviorFromJson(const JsonNode& node);

// Threads: safe, each with its own scratch
class Splitter {
 public:
  // `inverted`: what lies between the matches is taken for a match, and the other way round.
  Splitter(TextPattern pattern, SplitBehavior behavior, bool inverted)
      : pattern_(std::move(pattern)), behavior_(behavior), inverted_(inverted) {}

  void Cut(Piece piece, PatternScratch& scratch, PieceSink sink) const;

 private:
  struct Span {
    size_t begin, end;
    bool is_match;
  };
  // `each(span)` for matches, which may be empty, and what lies between them, which is not, from left to right.
  template <typename Each>
  void ForEachSpan(absl::string_view text, PatternScratch& scratch, Each each) const;

  TextPattern pattern_;
  SplitBehavior behavior_;
  bool inverted_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SPLITTER_H_
