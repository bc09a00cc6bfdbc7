#ifndef EPS_COMMON_TOKENIZER_NORMALIZER_H_
#define EPS_COMMON_TOKENIZER_NORMALIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/pattern.h"

namespace eps {

// Turns a part of a text, between added tokens, into what is cut into pieces. Text is well-formed before and after.
//
// Threads: safe, each with its own scratch
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void Apply(std::string& text, PatternScratch& scratch) const = 0;
};

// The member `normalizer` of a tokenizer.json: NFC, NFD, NFKC, NFKD, Lowercase, StripAccents, Strip, Replace, Prepend,
// BertNormalizer, or a Sequence of these.
//
// Errors: INVALID_ARGUMENT naming the key
absl::StatusOr<std::unique_ptr<Normalizer>> NormalizerFromJson(const JsonNode& node);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_NORMALIZER_H_
