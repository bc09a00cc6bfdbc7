#ifndef EPS_COMMON_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
#define EPS_COMMON_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// A tokenizer from the bytes of a tokenizer.model: unigram and BPE models.
//
// Special tokens are the model's control pieces and the unknown one. SentencePiece itself never finds control pieces in
// a text; with kAsTokens they are taken out first, and each part between them is encoded as a text of its own, so that
// it begins with a space where the model adds one. User-defined pieces are no special tokens, and are found in any text.
//
// Errors: INVALID_ARGUMENT naming the field or the offset
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromSentencePiece(absl::string_view bytes);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SENTENCEPIECE_TOKENIZER_H_
