#include "common/corpus/text_marks.h"

#include "absl/types/span.h"

namespace eps {
namespace {

std::string FirstOf(absl::Span<const char* const> spellings, const Tokenizer& tokenizer) {
  for (const char* spelling : spellings) {
    if (tokenizer.TokenId(spelling)) return spelling;
  }
  return "";
}

}  // namespace

std::string BosToken(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  if (settings.bos_token) return *settings.bos_token;
  return FirstOf({"<|begin_of_text|>", "<s>"}, tokenizer);
}

std::string BeginOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  const std::string bos = BosToken(settings, tokenizer);
  // Without settings a tokenizer that has the token is taken to be of a model that begins with it.
  const bool begins = settings.adds_bos.value_or(!settings.bos_token || tokenizer.PutsInFront(bos));
  return begins ? bos : "";
}

std::string EndOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  if (settings.eos_token) return *settings.eos_token;
  return FirstOf(kEndsOfText, tokenizer);
}

}  // namespace eps
