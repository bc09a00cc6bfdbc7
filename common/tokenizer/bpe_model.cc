#include "common/tokenizer/bpe_model.h"

#include <algorithm>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_alphabet.h"

namespace eps {
namespace {

constexpr int32_t kNone = -1;
constexpr absl::string_view kWordMark = "\xE2\x96\x81";  // U+2581, SentencePiece's space
constexpr size_t kFew = 64;                              // symbols that a scan is faster for than a heap

std::string ByteToken(int byte) { return absl::StrFormat("<0x%02X>", byte); }

// The heap's order: lowest rank, then leftmost, on top.
bool ComesLater(const ModelScratch::Candidate& a, const ModelScratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
}

}  // namespace

BpeModel::BpeModel(const Options& options)
    : byte_level_(options.byte_level),
      ignore_merges_(options.ignore_merges),
      fuse_unk_(options.fuse_unk),
      unk_(options.unk.value_or(kNone)),
      merges_(options.merges.size()) {
  byte_ids_.fill(kNone);
  ascii_ids_.fill(kNone);
}

absl::StatusOr<std::unique_ptr<BpeModel>> BpeModel::Create(const Options& options) {
  std::unique_ptr<BpeModel> model(new BpeModel(options));
  EPS_RETURN_IF_ERROR(model->AddMerges(options));
  model->AddPieces(*options.vocabulary, options.apart);
  if (options.byte_fallback && !options.byte_level) {
    for (int byte = 0; byte < 256; ++byte) {
      model->byte_ids_[static_cast<size_t>(byte)] = options.vocabulary->Find(ByteToken(byte)).value_or(kNone);
    }
    model->falls_back_ = true;
  }
  model->FindWords(options);
  return model;
}

// Tokenizers that came from SentencePiece have no pre-tokenizer: all of a text is one piece. Where no merge has U+2581 at
// its right part's start, but behind another one, nothing ever reaches over what lies in front of such a mark, and the
// piece can be cut there: words are short, and come again.
void BpeModel::FindWords(const Options& options) {
  if (byte_level_ || ignore_merges_ || !options.vocabulary->Find(kWordMark)) return;
  cuts_words_ = std::none_of(options.merges.begin(), options.merges.end(), [](const auto& merge) {
    return absl::StartsWith(merge.second, kWordMark) && !absl::EndsWith(merge.first, kWordMark);
  });
}

absl::Status BpeModel::AddMerges(const Options& options) {
  uint32_t rank = 0;
  for (const auto& [left, right] : options.merges) {
    const auto id_of = [&](absl::string_view spelling) -> absl::StatusOr<int32_t> {
      const std::optional<int32_t> id = options.vocabulary->Find(spelling);
      if (id) return *id;
      return absl::InvalidArgumentError(absl::StrCat("merges[", rank, "]: \"", absl::CHexEscape(spelling.substr(0, 80)),
                                                     "\" is not in vocab; every part and result must be"));
    };
    EPS_ASSIGN_OR_RETURN(const int32_t left_id, id_of(left));
    EPS_ASSIGN_OR_RETURN(const int32_t right_id, id_of(right));
    EPS_ASSIGN_OR_RETURN(const int32_t id, id_of(left + right));
    if (!options.apart.contains(id)) merges_.Put(MergeTable::Pair(left_id, right_id), {rank, id});
    ++rank;
  }
  return absl::OkStatus();
}

// What a piece starts as, and with ignore_merges what it may be as a whole.
void BpeModel::AddPieces(const Vocabulary& vocabulary, const absl::flat_hash_set<int32_t>& apart) {
  for (int32_t id = 0; id < vocabulary.num_ids(); ++id) {
    if (!vocabulary.Has(id) || apart.contains(id)) continue;
    const std::string& spelling = vocabulary.Spelling(id);
    if (spelling.empty()) continue;
    const std::optional<std::string> bytes = byte_level_ ? BytesOfSpelling(spelling) : spelling;
    if (!bytes) continue;
    if (ignore_merges_) whole_pieces_.try_emplace(*bytes, id);
    if (byte_level_) {
      if (bytes->size() == 1) byte_ids_[static_cast<uint8_t>((*bytes)[0])] = id;
    } else if (const Utf8Step step = FirstOf(spelling); step.num_bytes == spelling.size()) {
      character_ids_.try_emplace(step.code_point, id);
      if (step.code_point < ascii_ids_.size()) ascii_ids_[step.code_point] = id;
    }
  }
}

void BpeModel::Tokenize(absl::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  size_t from = 0;  // of the search, behind the marks that the word begins with
  while (cuts_words_) {
    while (absl::StartsWith(piece.substr(from), kWordMark)) from += kWordMark.size();
    const size_t end = piece.find(kWordMark, from);
    if (end == absl::string_view::npos) break;
    TokenizeWord(piece.substr(0, end), scratch, ids);
    piece.remove_prefix(end);
    from = 0;
  }
  TokenizeWord(piece, scratch, ids);
}

void BpeModel::TokenizeWord(absl::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  if (scratch.cache.Lookup(piece, ids)) return;
  if (ignore_merges_) {
    if (const auto it = whole_pieces_.find(piece); it != whole_pieces_.end()) {
      scratch.cache.Store(piece, &it->second, 1);
      ids.push_back(it->second);
      return;
    }
  }
  scratch.ids.clear();
  Split(piece, scratch.ids);
  if (scratch.ids.size() <= kFew) {
    MergeFew(scratch);
  } else {
    MergeMany(scratch);
  }
  scratch.cache.Store(piece, scratch.ids.data(), scratch.ids.size());
  ids.insert(ids.end(), scratch.ids.begin(), scratch.ids.end());
}

void BpeModel::Split(absl::string_view piece, std::vector<int32_t>& symbols) const {
  if (!byte_level_) return SplitCharacters(piece, symbols);
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id != kNone) {
      symbols.push_back(id);
    } else if (unk_ != kNone && !(fuse_unk_ && !symbols.empty() && symbols.back() == unk_)) {
      symbols.push_back(unk_);
    }
  }
}

void BpeModel::SplitCharacters(absl::string_view piece, std::vector<int32_t>& symbols) const {
  bool after_unknown = false;
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    const char32_t c = NextCodePoint(piece, at);
    int32_t id = kNone;
    if (c < ascii_ids_.size()) {
      id = ascii_ids_[c];
    } else if (const auto it = character_ids_.find(c); it != character_ids_.end()) {
      id = it->second;
    }
    if (id != kNone) {
      symbols.push_back(id);
      after_unknown = false;
    } else if (falls_back_ && FallBack(piece.substr(begin, at - begin), symbols)) {
      after_unknown = false;
    } else if (unk_ != kNone) {
      if (!(fuse_unk_ && after_unknown)) symbols.push_back(unk_);
      after_unknown = true;
    }
  }
}

bool BpeModel::FallBack(absl::string_view character, std::vector<int32_t>& symbols) const {
  for (const char c : character) {
    if (byte_ids_[static_cast<uint8_t>(c)] == kNone) return false;
  }
  for (const char c : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
  return true;
}

// ranks[i] is that of the merge of ids[i] with what follows.
void BpeModel::MergeFew(ModelScratch& scratch) const {
  std::vector<int32_t>& ids = scratch.ids;
  std::vector<uint32_t>& ranks = scratch.ranks;
  const auto rank_at = [&](size_t i) {
    return i + 1 < ids.size() ? merges_.Get(MergeTable::Pair(ids[i], ids[i + 1])).rank : MergeTable::kNoRank;
  };
  ranks.resize(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) ranks[i] = rank_at(i);
  while (ids.size() > 1) {
    const auto least = std::min_element(ranks.begin(), ranks.end());
    if (*least == MergeTable::kNoRank) return;
    const auto at = least - ranks.begin();
    const auto i = static_cast<size_t>(at);
    ids[i] = merges_.Get(MergeTable::Pair(ids[i], ids[i + 1])).id;
    ids.erase(ids.begin() + at + 1);
    ranks.erase(ranks.begin() + at + 1);
    ranks[i] = rank_at(i);
    if (i > 0) ranks[i - 1] = rank_at(i - 1);
  }
}

void BpeModel::Offer(ModelScratch& scratch, int32_t at) const {
  if (at < 0) return;
  const ModelScratch::Symbol& left = scratch.symbols[static_cast<size_t>(at)];
  if (left.next < 0) return;
  const uint64_t pair = MergeTable::Pair(left.id, scratch.symbols[static_cast<size_t>(left.next)].id);
  const MergeTable::Merge merge = merges_.Get(pair);
  if (merge.rank == MergeTable::kNoRank) return;
  scratch.heap.push_back({merge.rank, at, pair});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), ComesLater);
}

// A list of symbols and a heap of merges. One that is no longer possible when it comes up is let go: its left symbol is
// gone (kNone) or has become another, or what follows has.
void BpeModel::MergeMany(ModelScratch& scratch) const {
  std::vector<ModelScratch::Symbol>& symbols = scratch.symbols;
  symbols.clear();
  scratch.heap.clear();
  const auto count = static_cast<int32_t>(
      std::min<size_t>(scratch.ids.size(), static_cast<size_t>(std::numeric_limits<int32_t>::max())));
  for (int32_t i = 0; i < count; ++i) {
    symbols.push_back({scratch.ids[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : kNone});
  }
  for (int32_t i = 0; i < count; ++i) Offer(scratch, i);
  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), ComesLater);
    const ModelScratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    ModelScratch::Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (left.id == kNone || left.next < 0) continue;
    ModelScratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (MergeTable::Pair(left.id, right.id) != best.pair) continue;
    left.id = merges_.Get(best.pair).id;
    right.id = kNone;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.at;
    Offer(scratch, left.previous);
    Offer(scratch, best.at);
  }
  scratch.ids.clear();
  for (const ModelScratch::Symbol& symbol : symbols) {
    if (symbol.id != kNone) scratch.ids.push_back(symbol.id);
  }
}

}  // namespace eps
