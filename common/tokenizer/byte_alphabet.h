#ifndef EPS_COMMON_TOKENIZER_BYTE_ALPHABET_H_
#define EPS_COMMON_TOKENIZER_BYTE_ALPHABET_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace eps {

// Byte-level vocabularies are spelled with one printable character per byte: those that Latin-1 prints stand for
// themselves, the others, in order, for U+0100, U+0101, ...: a space is U+0120.

// The bytes that `spelling` stands for; nothing when a character is not of the alphabet.
std::optional<std::string> BytesOfSpelling(absl::string_view spelling);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_BYTE_ALPHABET_H_
