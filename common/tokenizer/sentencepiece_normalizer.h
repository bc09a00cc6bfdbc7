#ifndef EPS_COMMON_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
#define EPS_COMMON_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/sentencepiece_file.h"

namespace eps {

// The rules of a `precompiled_charsmap`: what replaces the longest of certain strings that a text begins with.
//
//   offset  bytes  field
//   0       4      n, little-endian, a multiple of 4
//   4       n      a double array trie, units of 32 bits: bit 31 and 0..7 label, 8 has a leaf, 9 offset is shifted by 8
//                  more, 10..30 offset; a leaf's bits 0..30 are where its replacement begins
//   4 + n   rest   replacements, each ends in a zero byte
//
// Every index is checked when it is used: the file is somebody else's.
class Charsmap {
 public:
  // Empty bytes are no rules. Errors: INVALID_ARGUMENT naming the offset
  static absl::StatusOr<Charsmap> Create(absl::string_view bytes);

  // Bytes of the longest rule at the start of `text`, and its replacement; 0 when there is none.
  size_t Match(absl::string_view text, absl::string_view& replacement) const;

 private:
  std::vector<uint32_t> trie_;
  std::string replacements_;
};

// Text as a SentencePiece model's pieces are spelled: by the charsmap, with spaces joined, moved and made visible.
// Bytes that are not UTF-8 become U+FFFD each.
//
// Threads: safe
class SentencePieceNormalizer {
 public:
  static absl::StatusOr<SentencePieceNormalizer> Create(const SentencePieceFile& file);

  std::string Apply(absl::string_view text) const;
  // Bytes of the longest user-defined piece at the start of `text`, or 0.
  size_t UserDefined(absl::string_view text) const { return user_defined_.MatchAt(text); }

 private:
  SentencePieceNormalizer() = default;
  // What the start of `text` becomes, and how many bytes of it.
  size_t First(absl::string_view text, absl::string_view& becomes) const;

  Charsmap charsmap_;
  AddedTokenFinder user_defined_;
  bool add_dummy_prefix_ = true, remove_extra_whitespaces_ = true, whitespace_as_suffix_ = false;
  absl::string_view space_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SENTENCEPIECE_NORMALIZER_H_
