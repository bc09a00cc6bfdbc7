#ifndef EPS_COMMON_CORPUS_TESTING_H_
#define EPS_COMMON_CORPUS_TESTING_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// A token per byte, and special tokens from 256 on in the order given.
class FakeTokenizer final : public Tokenizer {
 public:
  struct Options {
    std::vector<std::string> specials;
    bool puts_space_before = false;  // as SentencePiece does: " a" is a token of its own then, spelled U+2581 a
    int64_t vocab = 0;               // 0: no more than there is
  };
  FakeTokenizer() : FakeTokenizer(Options()) {}
  explicit FakeTokenizer(Options options) : options_(std::move(options)) {}

  std::vector<int32_t> Encode(absl::string_view text, Specials specials) const override {
    std::vector<int32_t> ids;
    if (text.empty()) return ids;
    if (options_.puts_space_before && specials == Specials::kAsText) {
      if (absl::ConsumePrefix(&text, "a")) {
        ids.push_back(space_a());
      } else {
        ids.push_back(' ');
      }
    }
    while (!text.empty()) {
      size_t taken = 0;
      for (size_t i = 0; specials == Specials::kAsTokens && taken == 0 && i < options_.specials.size(); ++i) {
        if (!absl::StartsWith(text, options_.specials[i])) continue;
        ids.push_back(256 + static_cast<int32_t>(i));
        taken = options_.specials[i].size();
      }
      if (taken == 0) {
        ids.push_back(static_cast<unsigned char>(text[0]));
        taken = 1;
      }
      text.remove_prefix(taken);
    }
    return ids;
  }

  // Special tokens in braces: "{<s>}".
  std::string Decode(absl::Span<const int32_t> ids, bool skip_specials) const override {
    std::string text;
    for (const int32_t id : ids) {
      if (id < 256) {
        text.push_back(static_cast<char>(id));
      } else if (id == space_a()) {
        text += " a";
      } else if (!skip_specials) {
        absl::StrAppend(&text, "{", options_.specials[static_cast<size_t>(id - 256)], "}");
      }
    }
    return text;
  }

  int64_t vocab() const override { return options_.vocab > 0 ? options_.vocab : space_a() + 1; }

  std::optional<int32_t> TokenId(absl::string_view token) const override {
    if (options_.puts_space_before && token == "\u2581a") return space_a();
    for (size_t i = 0; i < options_.specials.size(); ++i) {
      if (token == options_.specials[i]) return 256 + static_cast<int32_t>(i);
    }
    return std::nullopt;
  }

  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  int32_t space_a() const { return 256 + static_cast<int32_t>(options_.specials.size()); }

  const Options options_;
  const std::string fingerprint_ = std::string(64, 'a');
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_TESTING_H_
