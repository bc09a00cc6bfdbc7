#include "common/tokenizer/wordpiece_model.h"

#include <algorithm>

#include "absl/strings/match.h"

namespace eps {

WordPieceModel::WordPieceModel(const Options& options) : unk_(options.unk), max_characters_(options.max_characters) {
  const Vocabulary& vocabulary = *options.vocabulary;
  for (int32_t id = 0; id < vocabulary.num_ids(); ++id) {
    if (!vocabulary.Has(id) || options.apart.contains(id)) continue;
    const absl::string_view spelling = vocabulary.Spelling(id);
    first_.Add(spelling, id);
    if (absl::StartsWith(spelling, options.continuing_prefix)) {
      continuing_.Add(spelling.substr(options.continuing_prefix.size()), id);
    }
  }
}

void WordPieceModel::Tokens::Add(absl::string_view spelling, int32_t id) {
  if (spelling.empty()) return;
  ids.try_emplace(std::string(spelling), id);
  longest_bytes = std::max(longest_bytes, spelling.size());
}

void WordPieceModel::Tokenize(absl::string_view piece, ModelScratch& scratch, std::vector<int32_t>& ids) const {
  if (scratch.cache.Lookup(piece, ids)) return;
  const size_t before = ids.size();
  if (IsTooLong(piece) || !Match(piece, ids)) {
    ids.resize(before);
    ids.push_back(unk_);
  }
  scratch.cache.Store(piece, ids.data() + before, ids.size() - before);
}

bool WordPieceModel::IsTooLong(absl::string_view piece) const {
  if (static_cast<int64_t>(piece.size()) <= max_characters_) return false;
  const auto is_first_byte = [](char c) { return (c & 0xC0) != 0x80; };
  return std::count_if(piece.begin(), piece.end(), is_first_byte) > max_characters_;
}

// A token ends where a character ends, because tokens are well-formed and so is the piece.
bool WordPieceModel::Match(absl::string_view piece, std::vector<int32_t>& ids) const {
  const Tokens* tokens = &first_;
  while (!piece.empty()) {
    size_t num_bytes = std::min(piece.size(), tokens->longest_bytes);
    auto found = tokens->ids.end();
    for (; num_bytes > 0; --num_bytes) {
      found = tokens->ids.find(piece.substr(0, num_bytes));
      if (found != tokens->ids.end()) break;
    }
    if (num_bytes == 0) return false;
    ids.push_back(found->second);
    piece.remove_prefix(num_bytes);
    tokens = &continuing_;
  }
  return true;
}

}  // namespace eps
