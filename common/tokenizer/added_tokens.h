#ifndef EPS_COMMON_TOKENIZER_ADDED_TOKENS_H_
#define EPS_COMMON_TOKENIZER_ADDED_TOKENS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace eps {

// A token that is looked for in the text itself, before anything is cut: "<|im_end|>".
struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool in_model = false;     // the model's own vocabulary has it, too
  bool special = false;      // Specials::kAsText leaves it text
  bool normalized = false;   // looked for in the normalized text, by its normalized content
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space behind it
  bool single_word = false;  // not within a word
};

// Finds tokens in a text: the leftmost, and of those that begin there the longest.
//
// Cost:    a look at each byte, and where a token may begin a look-up for each byte of it
// Threads: safe once nothing is added any more
class AddedTokenFinder {
 public:
  // `spelling`: what is looked for, the token's content or what became of it; an empty one is nowhere. Of two tokens with
  // one spelling the first is found.
  void Add(const AddedToken& token, absl::string_view spelling);
  // Bytes of the longest spelling that `text` begins with, or 0.
  size_t MatchAt(absl::string_view text) const;

  // A part of a text: `id` of a token, or -1.
  struct Part {
    absl::string_view text;
    int32_t id;
  };
  // All of `text`, from left to right; no text between tokens is empty. A token that takes the white space behind it and
  // one in that white space overlap.
  void ForEachPart(absl::string_view text, absl::FunctionRef<void(Part)> each) const;
  // Tokens among these parts.
  int64_t CountIn(absl::string_view text) const;

 private:
  static constexpr int32_t kNone = -1;

  // The token that begins at `begin`, by its index, and where it ends.
  int32_t LongestAt(absl::string_view text, size_t begin, size_t& end) const;

  std::vector<AddedToken> tokens_;
  std::array<bool, 256> begins_{};  // by a spelling's first byte
  // A tree of bytes: from node * 256 + byte to a node; node 0 is the root. What ends at a node, or kNone.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> ends_ = {kNone};
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_ADDED_TOKENS_H_
