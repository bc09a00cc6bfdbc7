#include "common/tokenizer/splitter.h"

#include <string>

#include "common/base/status_macros.h"

namespace eps {

absl::StatusOr<SplitBehavior> SplitBehaviorFromJson(const JsonNode& node) {
  EPS_ASSIGN_OR_RETURN(const std::string name, node.String());
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return node.Bad("Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

template <typename Each>
void Splitter::ForEachSpan(absl::string_view text, PatternScratch& scratch, Each each) const {
  size_t done = 0;
  pattern_.ForEachMatch(text, scratch, [&](Pattern::Match match) {
    if (match.begin > done) each(Span{done, match.begin, inverted_});
    each(Span{match.begin, match.end, !inverted_});
    done = match.end;
  });
  if (done < text.size()) each(Span{done, text.size(), inverted_});
}

void Splitter::Cut(Piece piece, PatternScratch& scratch, PieceSink sink) const {
  const auto give = [&](size_t begin, size_t end) {
    if (begin < end) sink({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
  };
  if (behavior_ == SplitBehavior::kRemoved || behavior_ == SplitBehavior::kIsolated) {
    ForEachSpan(piece.text, scratch, [&](Span span) {
      if (behavior_ == SplitBehavior::kIsolated || !span.is_match) give(span.begin, span.end);
    });
    return;
  }
  // Spans that belong together are gathered in `open`, and given when one comes that does not.
  Span open{0, 0, false};
  ForEachSpan(piece.text, scratch, [&](Span span) {
    bool joins = false;
    switch (behavior_) {
      case SplitBehavior::kMergedWithPrevious:  // but the second of two matches stands alone
        joins = span.is_match && !open.is_match;
        break;
      case SplitBehavior::kMergedWithNext:
        joins = !span.is_match && open.is_match;
        break;
      default:
        joins = span.is_match == open.is_match;
        break;
    }
    if (!joins) give(open.begin, open.end);
    open = {joins ? open.begin : span.begin, span.end, span.is_match};
  });
  give(open.begin, open.end);
}

}  // namespace eps
