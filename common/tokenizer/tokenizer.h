#ifndef EPS_COMMON_TOKENIZER_TOKENIZER_H_
#define EPS_COMMON_TOKENIZER_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace eps {

// Text to token ids and back, as a model was trained with.
//
// Threads: safe; fixed after construction.
class Tokenizer {
 public:
  // Whether a special token's own spelling in a text ("<|im_end|>") becomes that token. Text that others wrote must not
  // be able to end a turn: kAsText.
  enum class Specials { kAsText, kAsTokens };

  virtual ~Tokenizer() = default;

  // Ids of `text` alone: nothing is put in front or behind (bos, eos, [CLS]). Bytes that are not UTF-8 are treated as
  // the family's own implementation does.
  virtual std::vector<int32_t> Encode(absl::string_view text, Specials specials) const = 0;
  // The bytes of `ids`, special tokens spelled out or left out. What an id outside [0, vocab()) stands for is nothing.
  virtual std::string Decode(absl::Span<const int32_t> ids, bool skip_specials) const = 0;

  // One more than the largest id. A model's table may be larger.
  virtual int64_t vocab() const = 0;
  // The id of a token by its exact spelling, special or not.
  virtual std::optional<int32_t> TokenId(absl::string_view token) const = 0;
  // Whether kAsText never gives this id.
  virtual bool IsSpecial(int32_t id) const = 0;
  // Whether the model's own tokenizer puts that token in front of a text, which Encode does not. Most families do where
  // they have one.
  virtual bool PutsInFront(absl::string_view /*token*/) const { return true; }
  // Spellings of special tokens in a text: how many kAsTokens would find.
  virtual int64_t CountSpecials(absl::string_view text) const = 0;
  // Of the files that it was read from: two tokenizers with the same sum give the same ids. Hex of SHA-256.
  virtual const std::string& fingerprint() const = 0;
};

// One token per byte.
std::unique_ptr<Tokenizer> MakeByteTokenizer();

// From a folder of a model (tokenizer.json goes before tokenizer.model), or one of these files by its name. Tokens of an
// added_tokens.json beside a tokenizer.model are special ones of it; a tokenizer_config.json beside a tokenizer.json must
// not say otherwise (class_overrides.h).
// Errors: NOT_FOUND no such file, or neither in the folder · INVALID_ARGUMENT naming the file and the key, or the
//         offset, what was found, and what is supported
absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_TOKENIZER_H_
