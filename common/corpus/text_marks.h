#ifndef EPS_COMMON_CORPUS_TEXT_MARKS_H_
#define EPS_COMMON_CORPUS_TEXT_MARKS_H_

#include <string>

#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_settings.h"

namespace eps {

// The spellings of what ends a text, as families use them; the first goes before the others.
inline constexpr const char* kEndsOfText[] = {"<|endoftext|>", "<|end_of_text|>", "</s>"};

// The spelling of the model's bos_token, whether texts begin with it or not: what its settings say, else the first of
// those that families use which is a special token of the tokenizer. "": none.
std::string BosToken(const TokenizerSettings& settings, const Tokenizer& tokenizer);

// The spellings of the tokens around a text, in the same way; in front as the settings say, else as the tokenizer puts it
// there. "": none.
std::string BeginOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer);
std::string EndOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_TEXT_MARKS_H_
