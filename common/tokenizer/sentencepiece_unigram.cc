#include "common/tokenizer/sentencepiece_unigram.h"

#include <algorithm>
#include <limits>

#include "common/base/utf8.h"

namespace eps {
namespace {

constexpr int32_t kNone = SentencePiecePieces::kNone;
constexpr float kUnknownPenalty = 10;  // below the least score of all

}  // namespace

SentencePieceUnigram::SentencePieceUnigram(const SentencePiecePieces& pieces) : pieces_(pieces) {
  least_ = std::numeric_limits<float>::max();
  // The least positive number, not the lowest: scores are logarithms and never above it, so that a user-defined piece
  // costs next to nothing. SentencePiece does so.
  most_ = std::numeric_limits<float>::min();
  for (int32_t id = 0; id < pieces.size(); ++id) {
    const SentencePieceFile::Piece& piece = pieces.piece(id);
    if (piece.type == SentencePieceFile::Type::kNormal) {
      least_ = std::min(least_, piece.score);
      most_ = std::max(most_, piece.score);
    }
    // An unused piece is never chosen.
    if (pieces.FindInText(piece.text) == id && !pieces.IsUnused(id)) AddToTree(piece.text, id);
  }
}

void SentencePieceUnigram::AddToTree(absl::string_view text, int32_t id) {
  uint32_t node = 0;
  for (const char c : text) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [it, is_new] = edges_.try_emplace(edge, static_cast<uint32_t>(ids_.size()));
    if (is_new) ids_.push_back(kNone);
    node = it->second;
  }
  ids_[node] = id;
}

// Sums are made in double and kept in float: SentencePiece's own mixture of both decides ties.
void SentencePieceUnigram::Extend(absl::string_view text, size_t begin, std::vector<Best>& ends) const {
  constexpr double kUserDefinedPenalty = 0.1;  // of the highest score that so many characters could have
  const float so_far = ends[begin].score;
  const auto offer = [&](size_t end, double score, int32_t id) {
    Best& best = ends[end];
    if (best.begin >= 0 && !(score > best.score)) return;
    best = {id, static_cast<float>(score), static_cast<int64_t>(begin)};
  };
  const size_t first_bytes = FirstOf(text.substr(begin)).num_bytes;
  bool has_first = false;
  uint32_t node = 0;
  for (size_t at = begin; at < text.size();) {
    const auto it = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[at]));
    if (it == edges_.end()) break;
    node = it->second;
    ++at;
    const int32_t id = ids_[node];
    if (id == kNone) continue;
    const size_t num_bytes = at - begin;
    const bool user_defined = pieces_.piece(id).type == SentencePieceFile::Type::kUserDefined;
    const double score = user_defined ? static_cast<float>(num_bytes) * most_ - kUserDefinedPenalty
                                      : static_cast<double>(pieces_.piece(id).score);
    offer(at, score + so_far, id);
    has_first = has_first || num_bytes == first_bytes;
  }
  if (!has_first) offer(begin + first_bytes, least_ - kUnknownPenalty + so_far, pieces_.file().unk);
}

void SentencePieceUnigram::Tokenize(absl::string_view text, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  std::vector<Best> ends(text.size() + 1);
  for (size_t begin = 0; begin < text.size(); begin += FirstOf(text.substr(begin)).num_bytes) Extend(text, begin, ends);
  // From the end back: where each piece begins.
  std::vector<int32_t>& cuts = scratch.ids;
  cuts.clear();
  for (auto end = static_cast<int64_t>(text.size()); end > 0; end = ends[static_cast<size_t>(end)].begin) {
    cuts.push_back(static_cast<int32_t>(end));
  }
  size_t begin = 0;
  for (auto it = cuts.rbegin(); it != cuts.rend(); ++it) {
    const auto end = static_cast<size_t>(*it);
    if (ends[end].id == pieces_.file().unk) {
      pieces_.PutUnknown(text.substr(begin, end - begin), ids);
    } else {
      ids.push_back(ends[end].id);
    }
    begin = end;
  }
}

}  // namespace eps
