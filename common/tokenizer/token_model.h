#ifndef EPS_COMMON_TOKENIZER_TOKEN_MODEL_H_
#define EPS_COMMON_TOKENIZER_TOKEN_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/tokenizer/piece_cache.h"

namespace eps {

// What a model needs for a piece; kept from one to the next, so that none allocates. For one thread at a time.
struct ModelScratch {
  struct Symbol {
    int32_t id;
    int32_t previous, next;  // indices; -1: none
  };
  // A merge that was possible when it was found.
  struct Candidate {
    uint32_t rank;
    int32_t at;  // index of the left symbol
    uint64_t pair;
  };

  PieceCache cache;
  std::vector<int32_t> ids;
  std::vector<uint32_t> ranks;
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

// Turns a piece of text into tokens.
//
// Threads: safe, each with its own scratch
class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the ids of `piece`, which is well-formed and not empty.
  virtual void Tokenize(absl::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids) const = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_TOKEN_MODEL_H_
