#ifndef EPS_COMMON_TOKENIZER_METASPACE_H_
#define EPS_COMMON_TOKENIZER_METASPACE_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/json_node.h"

namespace eps {

// Spaces as a visible sign, as SentencePiece has them: how it is read is the same for pre-tokenizer and decoder.
struct Metaspace {
  enum class Prepend { kAlways, kFirst, kNever };

  std::string replacement;  // one code point, usually U+2581
  Prepend prepend = Prepend::kAlways;
  bool split = true;
};

// With `prepend_scheme`, or with `add_prefix_space` of older files. Errors: INVALID_ARGUMENT naming the key
absl::StatusOr<Metaspace> MetaspaceFromJson(const JsonNode& node);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_METASPACE_H_
