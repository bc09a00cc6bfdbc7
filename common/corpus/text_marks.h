#ifndef EPS_COMMON_CORPUS_TEXT_MARKS_H_
#define EPS_COMMON_CORPUS_TEXT_MARKS_H_

#include <string>

#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps {

// The spellings of the tokens around a text: what the model's settings say, else the first of those that families use
// which the tokenizer has. "": none.
std::string BeginOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer);
std::string EndOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_TEXT_MARKS_H_
