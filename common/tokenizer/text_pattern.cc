#include "common/tokenizer/text_pattern.h"

#include "common/base/status_macros.h"

namespace eps {

absl::StatusOr<TextPattern> TextPattern::FromJson(const JsonNode& node) {
  EPS_RETURN_IF_ERROR(node.OnlyKeys({"String", "Regex"}));
  if (node.value().size() != 1) return node.Bad("{\"String\": ...} or {\"Regex\": ...}");
  if (node.Find("String")) {
    EPS_ASSIGN_OR_RETURN(const std::string text, node.String("String"));
    return Literal(text);
  }
  EPS_ASSIGN_OR_RETURN(const std::string regex, node.String("Regex"));
  absl::StatusOr<TextPattern> pattern = Regex(regex);
  if (!pattern.ok()) return Annotate(pattern.status(), node.where());
  return pattern;
}

absl::StatusOr<TextPattern> TextPattern::Regex(absl::string_view regex) {
  EPS_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Create(regex));
  return TextPattern(std::move(pattern));
}

bool TextPattern::Find(absl::string_view text, size_t from, PatternScratch& scratch, Pattern::Match& match) const {
  if (regex_) return regex_->Find(text, from, scratch, match);
  if (literal_.empty()) return false;
  const size_t begin = text.find(literal_, from);
  if (begin == absl::string_view::npos) return false;
  match = {begin, begin + literal_.size()};
  return true;
}

void TextPattern::ReplaceAll(std::string& text, absl::string_view content, PatternScratch& scratch) const {
  std::string out;
  size_t done = 0;
  bool any = false;
  ForEachMatch(text, scratch, [&](Pattern::Match match) {
    out.append(text, done, match.begin - done).append(content.data(), content.size());
    done = match.end;
    any = true;
  });
  if (any) text = std::move(out.append(text, done));
}

}  // namespace eps
