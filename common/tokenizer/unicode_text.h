#ifndef EPS_COMMON_TOKENIZER_UNICODE_TEXT_H_
#define EPS_COMMON_TOKENIZER_UNICODE_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

// Transformations of well-formed UTF-8, by ICU's tables.
namespace eps {

enum class NormalForm { kNfc, kNfd, kNfkc, kNfkd };
void ToNormalForm(NormalForm form, std::string& text);

// Each code point by itself, whatever stands beside it: Greek capital sigma is never a final one.
void ToLower(std::string& text);
// Without nonspacing marks (Mn). Those within a letter are found in NFD only.
void RemoveNonspacingMarks(std::string& text);
// Without any mark (M): those that take room too, as vowels of Devanagari do, and those around a letter.
void RemoveMarks(std::string& text);

// The property White_Space.
bool IsWhiteSpace(char32_t code_point);
// Without what Python's str.strip(), and so Jinja's trim, takes from both ends: white space, and U+001C to U+001F.
absl::string_view WithoutSpaceAround(absl::string_view text);
// Control, format, private use: C*, but not tab and line ends, nor what is not assigned, which Hugging Face's Rust keeps,
// whatever the comment there says (its is_other() is of these three).
bool IsBertControl(char32_t code_point);
// In the blocks of Chinese ideographs that BERT puts spaces around.
bool IsBertIdeograph(char32_t code_point);
// \w as Rust's: alphabetic, marks, decimal digits, connectors, and the two joiners, which Oniguruma's has not.
bool IsWord(char32_t code_point);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_UNICODE_TEXT_H_
