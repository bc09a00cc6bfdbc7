#include "common/tokenizer/tokenizer_json.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

// What is taken gives ids of its vocabulary for any text, and spells them without harm.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  const absl::StatusOr<std::unique_ptr<eps::Tokenizer>> tokenizer =
      eps::TokenizerFromJson({reinterpret_cast<const char*>(data), num_bytes});
  if (!tokenizer.ok()) return 0;
  for (const char* text : {"hello <|end|> world's\n\n 12 \xC3\x89\xE4\xB8\xAD", "\xFF ab ab", ""}) {
    for (const auto specials : {eps::Tokenizer::Specials::kAsText, eps::Tokenizer::Specials::kAsTokens}) {
      const std::vector<int32_t> ids = (*tokenizer)->Encode(text, specials);
      for (const int32_t id : ids) {
        if (id < 0 || id >= (*tokenizer)->vocab()) abort();
      }
      (*tokenizer)->Decode(ids, false);
    }
  }
  return 0;
}
