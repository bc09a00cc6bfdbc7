#ifndef EPS_COMMON_TOKENIZER_WORDPIECE_MODEL_H_
#define EPS_COMMON_TOKENIZER_WORDPIECE_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "common/tokenizer/token_model.h"
#include "common/tokenizer/vocabulary.h"

namespace eps {

// BERT's: of a word, the longest token that it begins with, then the longest that goes on from there, spelled with a
// prefix, and so on. A word that does not come out is one unknown token.
//
// Cost: n look-ups for each token, of a word of n bytes
class WordPieceModel : public TokenModel {
 public:
  struct Options {
    const Vocabulary* vocabulary = nullptr;  // read, and not kept
    std::string continuing_prefix = "##";
    int32_t unk = 0;
    int64_t max_characters = 100;        // a longer word is unknown
    absl::flat_hash_set<int32_t> apart;  // no part of a word becomes one of these: BpeModel's
  };
  explicit WordPieceModel(const Options& options);

  void Tokenize(absl::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids) const override;

 private:
  // Ids by spelling, and how long the longest is.
  struct Tokens {
    absl::flat_hash_map<std::string, int32_t> ids;
    size_t longest_bytes = 0;
    void Add(absl::string_view spelling, int32_t id);
  };

  bool IsTooLong(absl::string_view piece) const;
  bool Match(absl::string_view piece, std::vector<int32_t>& ids) const;

  const int32_t unk_;
  const int64_t max_characters_;
  Tokens first_, continuing_;  // continuing_ without the prefix
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_WORDPIECE_MODEL_H_
