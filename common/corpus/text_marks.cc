#include "common/corpus/text_marks.h"

#include <initializer_list>

namespace eps {
namespace {

std::string FirstOf(std::initializer_list<const char*> spellings, const Tokenizer& tokenizer) {
  for (const char* spelling : spellings) {
    if (tokenizer.TokenId(spelling)) return spelling;
  }
  return "";
}

}  // namespace

std::string BeginOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  if (settings.bos_token) return *settings.bos_token;
  return FirstOf({"<|begin_of_text|>", "<s>"}, tokenizer);
}

std::string EndOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  if (settings.eos_token) return *settings.eos_token;
  return FirstOf({"<|endoftext|>", "<|end_of_text|>", "</s>"}, tokenizer);
}

}  // namespace eps
