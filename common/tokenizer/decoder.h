#ifndef EPS_COMMON_TOKENIZER_DECODER_H_
#define EPS_COMMON_TOKENIZER_DECODER_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/pattern.h"

namespace eps {

// A token on its way to text.
struct DecodedToken {
  std::string text;
  bool added;  // its content is text already, and is not spelled in the alphabet of bytes
};

// Turns the spellings of tokens into text, which is what stands in them when all is done, one after another.
//
// Threads: safe
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual void Apply(std::vector<DecodedToken>& tokens) const = 0;
};

// The member `decoder` of a tokenizer.json: ByteLevel, ByteFallback, Fuse, Replace, Strip, Metaspace, WordPiece, or a
// Sequence of these.
//
// Bytes come out as they are: where tokens end within a character, or are not UTF-8, there is no U+FFFD.
// Errors: INVALID_ARGUMENT naming the key
absl::StatusOr<std::unique_ptr<Decoder>> DecoderFromJson(const JsonNode& node);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_DECODER_H_
