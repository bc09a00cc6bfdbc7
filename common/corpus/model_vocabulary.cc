#include "common/corpus/model_vocabulary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/shown_text.h"

namespace eps {
namespace {

constexpr int64_t kNumBytes = 256;
constexpr char kRemedy[] = ": take the tokenizer that the model was made with, or a model with a larger vocabulary";

}  // namespace

absl::Status CheckModelHas(absl::Span<const int32_t> ids, int64_t vocab, const Tokenizer& tokenizer) {
  const auto beyond = std::find_if(ids.begin(), ids.end(), [vocab](int32_t id) { return id >= vocab; });
  if (beyond == ids.end()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the token ", QuoteText(tokenizer.Decode({*beyond}, false)), " (",
                                                 *beyond, ") is beyond the model's vocabulary of ", vocab, kRemedy));
}

absl::Status CheckModelHasMost(const Tokenizer& tokenizer, int64_t vocab) {
  if (tokenizer.vocab() <= std::max(2 * vocab, kNumBytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("has ids up to ", tokenizer.vocab() - 1, ", and the model a vocabulary of ", vocab, kRemedy));
}

}  // namespace eps
