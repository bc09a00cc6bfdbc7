#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/sha256.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::vector<int32_t> Encode(absl::string_view text, Specials) const override {
    std::vector<int32_t> ids;
    ids.reserve(text.size());
    for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
    return ids;
  }
  std::string Decode(absl::Span<const int32_t> ids, bool) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id >= 0 && id < 256) text.push_back(static_cast<char>(id));
    }
    return text;
  }
  int64_t vocab() const override { return 256; }
  std::optional<int32_t> TokenId(absl::string_view token) const override {
    if (token.size() != 1) return std::nullopt;
    return static_cast<unsigned char>(token[0]);
  }
  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  const std::string fingerprint_ = Sha256Hex({});  // it is read from nothing
};

}  // namespace

std::unique_ptr<Tokenizer> MakeByteTokenizer() { return std::make_unique<ByteTokenizer>(); }

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const std::string& path) {
  return absl::UnimplementedError(absl::StrCat("\"", path, "\": only bytes are there"));
}

}  // namespace eps
