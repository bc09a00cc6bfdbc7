#include "common/tokenizer/added_tokens.h"

#include <algorithm>

#include "common/base/utf8.h"
#include "common/tokenizer/unicode_text.h"

namespace eps {
namespace {

// The last code point of well-formed text.
char32_t LastOf(absl::string_view text) {
  size_t at = text.size() - 1;
  while ((text[at] & 0xC0) == 0x80) --at;
  return FirstOf(text.substr(at)).code_point;
}

bool IsWithinWord(absl::string_view text, size_t begin, size_t end) {
  return (begin > 0 && IsWord(LastOf(text.substr(0, begin)))) ||
         (end < text.size() && IsWord(FirstOf(text.substr(end)).code_point));
}

size_t SpaceBefore(absl::string_view text, size_t begin) {
  while (begin > 0 && IsWhiteSpace(LastOf(text.substr(0, begin)))) {
    --begin;
    while ((text[begin] & 0xC0) == 0x80) --begin;
  }
  return begin;
}

size_t SpaceBehind(absl::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Step step = FirstOf(text.substr(end));
    if (!IsWhiteSpace(step.code_point)) break;
    end += step.num_bytes;
  }
  return end;
}

}  // namespace

void AddedTokenFinder::Add(const AddedToken& token, absl::string_view spelling) {
  if (spelling.empty()) return;
  begins_[static_cast<uint8_t>(spelling[0])] = true;
  uint32_t node = 0;
  for (const char c : spelling) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [it, is_new] = edges_.try_emplace(edge, static_cast<uint32_t>(ends_.size()));
    if (is_new) ends_.push_back(kNone);
    node = it->second;
  }
  if (ends_[node] != kNone) return;
  ends_[node] = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(token);
}

int32_t AddedTokenFinder::LongestAt(absl::string_view text, size_t begin, size_t& end) const {
  int32_t longest = kNone;
  uint32_t node = 0;
  for (size_t at = begin; at < text.size(); ++at) {
    const auto it = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[at]));
    if (it == edges_.end()) break;
    node = it->second;
    if (ends_[node] == kNone) continue;
    longest = ends_[node];
    end = at + 1;
  }
  return longest;
}

size_t AddedTokenFinder::MatchAt(absl::string_view text) const {
  size_t end = 0;
  if (!text.empty() && begins_[static_cast<uint8_t>(text[0])]) LongestAt(text, 0, end);
  return end;
}

void AddedTokenFinder::ForEachPart(absl::string_view text, absl::FunctionRef<void(Part)> each) const {
  size_t done = 0;
  for (size_t at = 0; !tokens_.empty() && at < text.size();) {
    size_t end = at;
    const int32_t found = begins_[static_cast<uint8_t>(text[at])] ? LongestAt(text, at, end) : kNone;
    if (found == kNone) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(found)];
    if (token.single_word && IsWithinWord(text, at, end)) {
      at = end;
      continue;
    }
    // Spaces that the token before it took are that token's; but the search goes on behind its spelling, and what is found
    // in them is given as well, as Hugging Face does.
    const size_t begin = token.lstrip ? std::min(std::max(SpaceBefore(text, at), done), end) : at;
    at = end;
    if (token.rstrip) end = SpaceBehind(text, end);
    if (done < begin) each({text.substr(done, begin - done), kNone});
    each({text.substr(begin, end - begin), token.id});
    done = end;
  }
  if (done < text.size()) each({text.substr(done), kNone});
}

int64_t AddedTokenFinder::CountIn(absl::string_view text) const {
  int64_t count = 0;
  ForEachPart(text, [&count](Part part) { count += part.id >= 0 ? 1 : 0; });
  return count;
}

}  // namespace eps
