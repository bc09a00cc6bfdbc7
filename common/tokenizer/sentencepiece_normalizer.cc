#include "common/tokenizer/sentencepiece_normalizer.h"

#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace eps {
namespace {

constexpr absl::string_view kReplacement = "\xEF\xBF\xBD", kVisibleSpace = "\xE2\x96\x81", kSpace = " ";

uint32_t LabelOf(uint32_t unit) { return unit & (1u << 31 | 0xFF); }
uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t ValueOf(uint32_t unit) { return unit & ((1u << 31) - 1); }

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Create(absl::string_view bytes) {
  Charsmap map;
  if (bytes.empty()) return map;
  const auto refuse = [](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("normalizer_spec.precompiled_charsmap: ", what));
  };
  uint32_t num_bytes = 0;
  if (bytes.size() < sizeof(num_bytes)) return refuse("shorter than its length");
  std::memcpy(&num_bytes, bytes.data(), sizeof(num_bytes));
  bytes.remove_prefix(sizeof(num_bytes));
  if (num_bytes == 0 || num_bytes % sizeof(uint32_t) != 0 || num_bytes >= bytes.size()) {
    return refuse(
        absl::StrCat("byte 0: a trie of ", num_bytes, " bytes, must be a multiple of 4 and less than ", bytes.size()));
  }
  if (bytes.back() != '\0') return refuse("the last replacement does not end in a zero byte");
  map.trie_.resize(num_bytes / sizeof(uint32_t));
  std::memcpy(map.trie_.data(), bytes.data(), num_bytes);
  map.replacements_ = std::string(bytes.substr(num_bytes));
  return map;
}

size_t Charsmap::Match(absl::string_view text, absl::string_view& replacement) const {
  if (trie_.empty()) return 0;
  size_t longest = 0;
  size_t node = OffsetOf(trie_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    node ^= byte;
    if (node >= trie_.size() || LabelOf(trie_[node]) != byte) break;
    const bool has_leaf = HasLeaf(trie_[node]);
    node ^= OffsetOf(trie_[node]);
    if (!has_leaf) continue;
    if (node >= trie_.size() || ValueOf(trie_[node]) >= replacements_.size()) break;
    longest = i + 1;
    replacement = replacements_.c_str() + ValueOf(trie_[node]);
  }
  return longest;
}

absl::StatusOr<SentencePieceNormalizer> SentencePieceNormalizer::Create(const SentencePieceFile& file) {
  SentencePieceNormalizer normalizer;
  EPS_ASSIGN_OR_RETURN(normalizer.charsmap_, Charsmap::Create(file.charsmap));
  for (const SentencePieceFile::Piece& piece : file.pieces) {
    if (piece.type == SentencePieceFile::Type::kUserDefined) normalizer.user_defined_.Add({}, piece.text);
  }
  normalizer.add_dummy_prefix_ = file.add_dummy_prefix;
  normalizer.remove_extra_whitespaces_ = file.remove_extra_whitespaces;
  normalizer.whitespace_as_suffix_ = file.whitespace_as_suffix;
  normalizer.space_ = file.escape_whitespaces ? kVisibleSpace : kSpace;
  return normalizer;
}

size_t SentencePieceNormalizer::First(absl::string_view text, absl::string_view& becomes) const {
  if (const size_t num_bytes = user_defined_.MatchAt(text); num_bytes > 0) {
    becomes = text.substr(0, num_bytes);
    return num_bytes;
  }
  if (const size_t num_bytes = charsmap_.Match(text, becomes); num_bytes > 0) return num_bytes;
  const Utf8Step step = FirstOf(text);
  becomes = step.is_well_formed ? text.substr(0, step.num_bytes) : kReplacement;
  return step.is_well_formed ? step.num_bytes : 1;
}

std::string SentencePieceNormalizer::Apply(absl::string_view text) const {
  absl::string_view part;
  while (remove_extra_whitespaces_ && !text.empty()) {
    const size_t num_bytes = First(text, part);
    if (part != kSpace) break;
    text.remove_prefix(num_bytes);
  }
  std::string out;
  if (text.empty()) return out;
  out.reserve(text.size() * 3 / 2);
  const auto put_space = [&] { out.append(space_.data(), space_.size()); };
  if (add_dummy_prefix_ && !whitespace_as_suffix_) put_space();
  bool after_space = remove_extra_whitespaces_;
  while (!text.empty()) {
    text.remove_prefix(First(text, part));
    while (after_space && absl::ConsumePrefix(&part, kSpace)) {
    }
    if (part.empty()) continue;
    for (const char c : part) {
      if (c == ' ') {
        put_space();
      } else {
        out += c;
      }
    }
    after_space = remove_extra_whitespaces_ && part.back() == ' ';
  }
  while (remove_extra_whitespaces_ && absl::EndsWith(out, space_)) out.resize(out.size() - space_.size());
  if (add_dummy_prefix_ && whitespace_as_suffix_) put_space();
  return out;
}

}  // namespace eps
