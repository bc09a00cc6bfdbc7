#ifndef EPS_COMMON_CORPUS_MODEL_VOCABULARY_H_
#define EPS_COMMON_CORPUS_MODEL_VOCABULARY_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/tokenizer/tokenizer.h"

// Whether a model of `vocab` tokens has those of a tokenizer. A tokenizer may have more: a padding token that was added to
// it and stands in no text, or all bytes where a text has few.
namespace eps {

// That it has these. Errors: INVALID_ARGUMENT the first token that it has not, and what to do
absl::Status CheckModelHas(absl::Span<const int32_t> ids, int64_t vocab, const Tokenizer& tokenizer);

// That it has most of them, so that a tokenizer of another model is told before hours of encoding.
// Errors: INVALID_ARGUMENT how many there are: to be put behind the tokenizer's name
absl::Status CheckModelHasMost(const Tokenizer& tokenizer, int64_t vocab);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_MODEL_VOCABULARY_H_
