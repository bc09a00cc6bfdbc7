#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

#include "absl/strings/string_view.h"
#include "common/base/utf8.h"
#include "common/tokenizer/example_tokenizers.h"
#include "common/tokenizer/tokenizer_json.h"

namespace {

using eps::Tokenizer;

const Tokenizer& ByteLevel() {
  static const Tokenizer& tokenizer = *eps::TokenizerFromJson(eps::ByteLevelJson())->release();
  return tokenizer;
}

const Tokenizer& Characters() {
  static const Tokenizer& tokenizer = *eps::TokenizerFromJson(eps::CharacterJson())->release();
  return tokenizer;
}

const Tokenizer& Words() {
  static const Tokenizer& tokenizer = *eps::TokenizerFromJson(eps::WordPieceJson())->release();
  return tokenizer;
}

}  // namespace

// Any bytes: a byte-level tokenizer gives back the text, well-formed, and no text makes a special token unless it may.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const absl::string_view text(reinterpret_cast<const char*>(data), num_bytes);
  std::string copy;
  const absl::string_view wanted = eps::WellFormed(text, copy);
  for (const auto specials : {Tokenizer::Specials::kAsText, Tokenizer::Specials::kAsTokens}) {
    if (ByteLevel().Decode(ByteLevel().Encode(text, specials), false) != wanted) abort();
    Words().Encode(text, specials);
    Characters().Encode(text, specials);
  }
  for (const int32_t id : ByteLevel().Encode(text, Tokenizer::Specials::kAsText)) {
    if (id == *ByteLevel().TokenId("<|end|>")) abort();
  }
  for (const int32_t id : Characters().Encode(text, Tokenizer::Specials::kAsText)) {
    if (id == *Characters().TokenId("<s>")) abort();
  }
  return 0;
}
