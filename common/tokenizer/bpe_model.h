#ifndef EPS_COMMON_TOKENIZER_BPE_MODEL_H_
#define EPS_COMMON_TOKENIZER_BPE_MODEL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/merge_table.h"
#include "common/tokenizer/token_model.h"
#include "common/tokenizer/vocabulary.h"

namespace eps {

// Byte pair encoding: a piece starts as its bytes or characters, and of all neighbours that a merge is known for, those
// of the lowest rank, the leftmost first, become one token, until there are none.
//
// Cost: short pieces n^2 comparisons in one cache line or a few, others n log n, of n bytes or characters; a piece that
//       came before one look-up
class BpeModel : public TokenModel {
 public:
  struct Options {
    const Vocabulary* vocabulary = nullptr;                   // outlives the model
    std::vector<std::pair<std::string, std::string>> merges;  // by rank, as the vocabulary spells them
    bool byte_level = false;                                  // the vocabulary is spelled in the alphabet of bytes
    bool byte_fallback = false;  // an unknown character becomes <0xNN> for each byte, where all of them are there
    bool ignore_merges = false;  // a piece that is a token needs no merges
    bool fuse_unk = false;       // neighbouring unknown characters become one unknown token
    std::optional<int32_t> unk;  // none: an unknown character becomes nothing
    // No text becomes one of these here: special tokens, whose text is taken out before, or is to stay text, and what was
    // added to the vocabulary and is none of the model's.
    absl::flat_hash_set<int32_t> apart;
  };
  // Errors: INVALID_ARGUMENT naming the merge by its index
  static absl::StatusOr<std::unique_ptr<BpeModel>> Create(const Options& options);

  void Tokenize(absl::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  explicit BpeModel(const Options& options);
  absl::Status AddMerges(const Options& options);
  void AddPieces(const Vocabulary& vocabulary, const absl::flat_hash_set<int32_t>& apart);

  void TokenizeWord(absl::string_view word, ModelScratch& scratch, std::vector<int32_t>& ids) const;
  void Split(absl::string_view piece, std::vector<int32_t>& symbols) const;
  void SplitCharacters(absl::string_view piece, std::vector<int32_t>& symbols) const;
  void FindWords(const Options& options);
  bool FallBack(absl::string_view character, std::vector<int32_t>& symbols) const;
  void MergeFew(ModelScratch& scratch) const;
  void MergeMany(ModelScratch& scratch) const;
  void Offer(ModelScratch& scratch, int32_t at) const;

  const bool byte_level_, ignore_merges_, fuse_unk_;
  const int32_t unk_;  // kNone: there is none
  bool falls_back_ = false;
  bool cuts_words_ = false;  // see FindWords
  MergeTable merges_;
  std::array<int32_t, 256> byte_ids_;   // of a byte: byte_level's, or <0xNN>
  std::array<int32_t, 128> ascii_ids_;  // of a character
  absl::flat_hash_map<char32_t, int32_t> character_ids_;
  absl::flat_hash_map<std::string, int32_t> whole_pieces_;  // where ignore_merges
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_BPE_MODEL_H_
