#ifndef EPS_COMMON_CORPUS_TESTING_H_
#define EPS_COMMON_CORPUS_TESTING_H_

#include <algorithm>
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
#include "common/base/utf8.h"
#include "common/tokenizer/tokenizer.h"

namespace eps {

// A token per byte, special tokens from 256 on in the order given, then words.
class FakeTokenizer final : public Tokenizer {
 public:
  struct Options {
    std::vector<std::string> specials;
    std::vector<std::string> words;  // tokens of their own wherever they stand
    bool puts_space_before = false;  // as SentencePiece does: " a" is a token of its own then, spelled U+2581 a
    int64_t vocab = 0;               // 0: no more than there is
    bool replaces_no_text = false;   // bytes that are no UTF-8 become U+FFFD, as with every tokenizer of text
    bool puts_in_front = true;
  };
  FakeTokenizer() : FakeTokenizer(Options()) {}
  explicit FakeTokenizer(Options options) : options_(std::move(options)) {}

  std::vector<int32_t> Encode(absl::string_view text, Specials specials) const override {
    std::vector<int32_t> ids;
    std::string copy;
    if (options_.replaces_no_text) text = WellFormed(text, copy);
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
      for (size_t i = 0; taken == 0 && i < options_.words.size(); ++i) {
        if (!absl::StartsWith(text, options_.words[i])) continue;
        ids.push_back(space_a() + 1 + static_cast<int32_t>(i));
        taken = options_.words[i].size();
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
      } else if (id > space_a()) {
        text += options_.words[static_cast<size_t>(id - space_a() - 1)];
      } else if (!skip_specials) {
        absl::StrAppend(&text, "{", options_.specials[static_cast<size_t>(id - 256)], "}");
      }
    }
    return text;
  }

  int64_t vocab() const override {
    return options_.vocab > 0 ? options_.vocab : space_a() + 1 + static_cast<int64_t>(options_.words.size());
  }

  std::optional<int32_t> TokenId(absl::string_view token) const override {
    if (options_.puts_space_before && token == "\u2581a") return space_a();
    for (size_t i = 0; i < options_.specials.size(); ++i) {
      if (token == options_.specials[i]) return 256 + static_cast<int32_t>(i);
    }
    for (size_t i = 0; i < options_.words.size(); ++i) {
      if (token == options_.words[i]) return space_a() + 1 + static_cast<int32_t>(i);
    }
    return std::nullopt;
  }

  bool IsSpecial(int32_t id) const override { return id >= 256 && id < space_a(); }
  bool PutsInFront(absl::string_view /*token*/) const override { return options_.puts_in_front; }
  int64_t CountSpecials(absl::string_view text) const override {
    const std::vector<int32_t> ids = Encode(text, Specials::kAsTokens);
    return std::count_if(ids.begin(), ids.end(), [this](int32_t id) { return IsSpecial(id); });
  }

  const std::string& fingerprint() const override { return fingerprint_; }

 private:
  int32_t space_a() const { return 256 + static_cast<int32_t>(options_.specials.size()); }

  const Options options_;
  const std::string fingerprint_ = std::string(64, 'a');
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_TESTING_H_
