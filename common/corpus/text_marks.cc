#include "common/corpus/text_marks.h"

#include <cstdint>
#include <optional>

#include "absl/types/span.h"

namespace eps {
namespace {

// Of those that are special tokens: a vocabulary may have the same letters as a token of plain text, as Qwen's has "<s>".
std::string FirstOf(absl::Span<const char* const> spellings, const Tokenizer& tokenizer) {
  for (const char* spelling : spellings) {
    if (const std::optional<int32_t> id = tokenizer.TokenId(spelling); id && tokenizer.IsSpecial(*id)) return spelling;
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
  return settings.adds_bos.value_or(tokenizer.PutsInFront(bos)) ? bos : "";
}

std::string EndOfText(const TokenizerSettings& settings, const Tokenizer& tokenizer) {
  if (settings.eos_token) return *settings.eos_token;
  return FirstOf(kEndsOfText, tokenizer);
}

}  // namespace eps
