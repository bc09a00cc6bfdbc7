#include "absl/types/span.h"
#include "common/base/sha256.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {
namespace {

constexpr int32_t kNumBytes = 256;

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<int32_t> Encode(absl::string_view text, Specials) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
    return ids;
  }

  std::string Decode(absl::Span<const int32_t> ids, bool) const override {
    std::string text;
    text.reserve(ids.size());
    for (const int32_t id : ids) {
      if (id >= 0 && id < kNumBytes) text += static_cast<char>(id);
    }
    return text;
  }

  int64_t vocab() const override { return kNumBytes; }

  std::optional<int32_t> TokenId(absl::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<uint8_t>(token[0]);
  }

  bool IsSpecial(int32_t) const override { return false; }
  int64_t CountSpecials(absl::string_view) const override { return 0; }

  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  const std::string fingerprint_ = Sha256Hex({});  // of no files
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

}  // namespace eps
