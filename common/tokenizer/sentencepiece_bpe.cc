#include "common/tokenizer/sentencepiece_bpe.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "common/base/utf8.h"

namespace eps {
namespace {

constexpr int32_t kNone = SentencePiecePieces::kNone;
constexpr absl::string_view kMark = "\xE2\x96\x81";  // a space

// Whether no piece has a mark behind anything else: then nothing reaches over what lies in front of one.
bool MarksBegin(const SentencePiecePieces& pieces) {
  if (pieces.FindInText(kMark) == kNone) return false;
  for (int32_t id = 0; id < pieces.size(); ++id) {
    absl::string_view text = pieces.piece(id).text;
    while (absl::StartsWith(text, kMark)) text.remove_prefix(kMark.size());
    if (absl::StrContains(text, kMark)) return false;
  }
  return true;
}

}  // namespace

SentencePieceBpe::SentencePieceBpe(const SentencePiecePieces& pieces, const SentencePieceNormalizer& normalizer)
    : pieces_(pieces), normalizer_(normalizer), cuts_words_(MarksBegin(pieces)) {}

void SentencePieceBpe::Tokenize(absl::string_view text, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  size_t from = 0;  // of the search, behind the marks that the word begins with
  while (cuts_words_) {
    while (absl::StartsWith(text.substr(from), kMark)) from += kMark.size();
    const size_t end = text.find(kMark, from);
    if (end == absl::string_view::npos) break;
    TokenizeWord(text.substr(0, end), scratch, ids);
    text.remove_prefix(end);
    from = 0;
  }
  TokenizeWord(text, scratch, ids);
}

void SentencePieceBpe::TokenizeWord(absl::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  if (word.empty() || scratch.cache.Lookup(word, ids)) return;
  Work work;
  Split(word, work);
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(work.symbols.size()); ++i) Offer(i, i + 1, work);
  Merge(work);
  scratch.ids.clear();
  for (const Symbol& symbol : work.symbols) {
    if (!symbol.text.empty()) Put(symbol.text, work.halves, scratch.ids);
  }
  scratch.cache.Store(word, scratch.ids.data(), scratch.ids.size());
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

void SentencePieceBpe::Split(absl::string_view word, Work& work) const {
  while (!word.empty()) {
    const size_t user_defined = normalizer_.UserDefined(word);
    const size_t num_bytes = user_defined > 0 ? user_defined : FirstOf(word).num_bytes;
    const auto i = static_cast<int32_t>(work.symbols.size());
    work.symbols.push_back({word.substr(0, num_bytes), i - 1, i + 1, user_defined > 0});
    word.remove_prefix(num_bytes);
  }
  work.symbols.back().next = kNone;
}

bool SentencePieceBpe::ComesLater(const Candidate& a, const Candidate& b) {
  return a.score != b.score ? a.score < b.score : a.left > b.left;
}

void SentencePieceBpe::Offer(int32_t left, int32_t right, Work& work) const {
  if (left == kNone || right == kNone) return;
  const Symbol& a = work.symbols[static_cast<size_t>(left)];
  const Symbol& b = work.symbols[static_cast<size_t>(right)];
  if (a.frozen || b.frozen) return;
  const absl::string_view both(a.text.data(), a.text.size() + b.text.size());
  const int32_t id = pieces_.FindInText(both);
  if (id == kNone) return;
  work.heap.push_back({pieces_.piece(id).score, left, right, both.size()});
  std::push_heap(work.heap.begin(), work.heap.end(), ComesLater);
  if (pieces_.IsUnused(id)) work.halves[both] = {a.text, b.text};
}

void SentencePieceBpe::Merge(Work& work) const {
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), ComesLater);
    const Candidate best = work.heap.back();
    work.heap.pop_back();
    Symbol& left = work.symbols[static_cast<size_t>(best.left)];
    Symbol& right = work.symbols[static_cast<size_t>(best.right)];
    if (left.text.empty() || right.text.empty() || left.text.size() + right.text.size() != best.num_bytes) continue;
    left.text = absl::string_view(left.text.data(), best.num_bytes);
    right.text = absl::string_view();
    left.next = right.next;
    if (left.next != kNone) work.symbols[static_cast<size_t>(left.next)].previous = best.left;
    Offer(left.previous, best.left, work);
    Offer(best.left, left.next, work);
  }
}

// Two halves are shorter than the whole, so that this ends; their depth is at most the number of bytes of a piece.
void SentencePieceBpe::Put(absl::string_view text, const Halves& halves, std::vector<int32_t>& ids) const {
  const int32_t id = pieces_.FindInText(text);
  if (id == kNone) return pieces_.PutUnknown(text, ids);
  if (pieces_.IsUnused(id)) {
    if (const auto it = halves.find(text); it != halves.end()) {
      Put(it->second.first, halves, ids);
      Put(it->second.second, halves, ids);
      return;
    }
  }
  ids.push_back(id);
}

}  // namespace eps
