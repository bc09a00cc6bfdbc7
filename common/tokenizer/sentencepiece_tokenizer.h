#ifndef EPS_COMMON_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
#define EPS_COMMON_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// A tokenizer from the bytes of a tokenizer.model: unigram and BPE models. `added`: of the added_tokens.json beside it, an
// object of tokens and their ids; "": there is none.
//
// Special tokens are the model's control pieces, the unknown one, and what is added. SentencePiece itself never finds these in
// a text; with kAsTokens they are taken out first, and each part between them is encoded as a text of its own, so that
// it begins with a space where the model adds one. User-defined pieces are no special tokens, and are found in any text.
//
// Errors: INVALID_ARGUMENT naming the field or the offset; added_tokens.json, and its token that is none
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view bytes,
                                                                      absl::string_view added = "");

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
