#ifndef EPS_COMMON_TOKENIZER_PRE_TOKENIZER_H_
#define EPS_COMMON_TOKENIZER_PRE_TOKENIZER_H_

#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/json_node.h"
#include "common/tokenizer/pattern.h"

namespace eps {

// A part of the text, which is well-formed and not empty.
struct Piece {
  absl::string_view text;
  bool at_start;  // of the whole text that was given to be encoded: nothing stands in front of it
};
using PieceSink = absl::FunctionRef<void(Piece)>;

// Cuts normalized text into pieces that the model takes one by one: no token reaches over a cut.
//
// Threads: safe, each with its own scratch
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Hands the pieces to `sink`, from left to right. Their text lives as long as the call of `sink`.
  virtual void Cut(Piece piece, PatternScratch& scratch, PieceSink sink) const = 0;
  // Whether the model's vocabulary is spelled in the alphabet of bytes (byte_alphabet.h). Pieces are bytes all the same.
  virtual bool IsByteLevel() const { return false; }
};

// The member `pre_tokenizer` of a tokenizer.json: ByteLevel, Split, Metaspace, BertPreTokenizer, Digits, Punctuation,
// Whitespace, WhitespaceSplit, or a Sequence of these in which ByteLevel is the last.
//
// Errors: INVALID_ARGUMENT naming the key
absl::StatusOr<std::unique_ptr<PreTokenizer>> PreTokenizerFromJson(const JsonNode& node);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_PRE_TOKENIZER_H_
