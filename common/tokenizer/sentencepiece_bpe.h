#ifndef EPS_COMMON_TOKENIZER_SENTENCEPIECE_BPE_H_
#define EPS_COMMON_TOKENIZER_SENTENCEPIECE_BPE_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/sentencepiece_file.h"
#include "common/tokenizer/sentencepiece_normalizer.h"
#include "common/tokenizer/sentencepiece_pieces.h"
#include "common/tokenizer/token_model.h"

namespace eps {

// SentencePiece's byte pair encoding: of all neighbours that make a piece together, those whose piece has the highest
// score, the leftmost first, become one, until there are none. A user-defined piece stays as it is. What has become an
// unused piece is taken apart again, as it was put together.
//
// Cost: n log n of n characters, word by word where no piece reaches over a space's front
class SentencePieceBpe : public TokenModel {
 public:
  // `pieces` and `normalizer` outlive it.
  SentencePieceBpe(const SentencePiecePieces& pieces, const SentencePieceNormalizer& normalizer);

  void Tokenize(absl::string_view text, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  struct Symbol {
    absl::string_view text;  // empty: it is a part of the one before it
    int32_t previous, next;  // indices; -1: none
    bool frozen;
  };
  struct Candidate {
    float score;
    int32_t left, right;
    size_t num_bytes;
  };
  using Halves = absl::flat_hash_map<absl::string_view, std::pair<absl::string_view, absl::string_view>>;
  struct Work {
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    Halves halves;  // of unused pieces
  };

  // The heap's order: the highest score, then the leftmost, on top.
  static bool ComesLater(const Candidate& a, const Candidate& b);

  void TokenizeWord(absl::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const;
  void Split(absl::string_view word, Work& work) const;
  void Offer(int32_t left, int32_t right, Work& work) const;
  void Merge(Work& work) const;
  void Put(absl::string_view text, const Halves& halves, std::vector<int32_t>& ids) const;

  const SentencePiecePieces& pieces_;
  const SentencePieceNormalizer& normalizer_;
  const bool cuts_words_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SENTENCEPIECE_BPE_H_
