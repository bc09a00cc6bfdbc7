#ifndef EPS_COMMON_TOKENIZER_EXAMPLE_TOKENIZERS_H_
#define EPS_COMMON_TOKENIZER_EXAMPLE_TOKENIZERS_H_

#include <string>

// Small tokenizers for tests.
namespace eps {

// As of GPT-2: all bytes, whose ids they are, "he", "ll", "hell", " w", the special token <|end|> and the added <tool>.
std::string ByteLevelJson();
// As converted from SentencePiece: characters, an unknown token, and bytes to fall back on for one letter.
std::string CharacterJson();
// As of BERT.
std::string WordPieceJson();
// The bytes of a tokenizer.model, a unigram one: <unk> <s> </s> and, of score -2 -3 -3 -1, U+2581 a b U+2581ab.
std::string SentencePieceModel();

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_EXAMPLE_TOKENIZERS_H_
