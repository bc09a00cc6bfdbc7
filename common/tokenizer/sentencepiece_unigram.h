#ifndef EPS_COMMON_TOKENIZER_SENTENCEPIECE_UNIGRAM_H_
#define EPS_COMMON_TOKENIZER_SENTENCEPIECE_UNIGRAM_H_

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/sentencepiece_pieces.h"
#include "common/tokenizer/token_model.h"

namespace eps {

// SentencePiece's unigram model: of all ways to cut a text into pieces, the one with the highest sum of scores, added
// from left to right in single precision as SentencePiece does, so that ties fall the same way.
//
// Cost: for each character a look-up for each character of the longest piece that begins there
class SentencePieceUnigram : public TokenModel {
 public:
  // `pieces` outlives it.
  explicit SentencePieceUnigram(const SentencePiecePieces& pieces);

  void Tokenize(absl::string_view text, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  // The best way to cut what lies in front of a place, by its last piece.
  struct Best {
    int32_t id = SentencePiecePieces::kNone;
    float score = 0;
    int64_t begin = -1;  // -1: there is none yet
  };

  void AddToTree(absl::string_view text, int32_t id);
  void Extend(absl::string_view text, size_t begin, std::vector<Best>& ends) const;

  const SentencePiecePieces& pieces_;
  float least_ = 0, most_ = 0;  // score of normal pieces
  // A tree of bytes: from node * 256 + byte to a node; node 0 is the root. The piece that ends at a node, or kNone.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> ids_ = {SentencePiecePieces::kNone};
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SENTENCEPIECE_UNIGRAM_H_
