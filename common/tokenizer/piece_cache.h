#ifndef EPS_COMMON_TOKENIZER_PIECE_CACHE_H_
#define EPS_COMMON_TOKENIZER_PIECE_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/string_view.h"

namespace eps {

// The ids of pieces that came before: most of a text is the same few thousand words. A fixed 2 MiB: a piece has one
// place, and takes it from whoever has it. What is longer or has more ids than an entry holds is not kept.
//
// Threads: one at a time
class PieceCache {
 public:
  PieceCache() : entries_(std::make_unique<Entry[]>(kNumEntries)) {}

  // Appends the ids of `piece`. False: it is not here; then Store puts it here.
  bool Lookup(absl::string_view piece, std::vector<int32_t>& ids) const {
    if (piece.size() > kMaxBytes) return false;
    const Entry& entry = entries_[Place(piece)];
    if (entry.num_bytes != piece.size() || std::memcmp(entry.bytes, piece.data(), piece.size()) != 0) return false;
    ids.insert(ids.end(), entry.ids, entry.ids + entry.num_ids);
    return true;
  }

  // `ids`: of this piece, which is not empty.
  void Store(absl::string_view piece, const int32_t* ids, size_t num_ids) {
    if (piece.size() > kMaxBytes || num_ids > kMaxIds) return;
    Entry& entry = entries_[Place(piece)];
    entry.num_bytes = static_cast<uint8_t>(piece.size());
    entry.num_ids = static_cast<uint8_t>(num_ids);
    std::memcpy(entry.bytes, piece.data(), piece.size());
    std::copy_n(ids, num_ids, entry.ids);  // which may be none
  }

 private:
  static constexpr size_t kMaxIds = 8, kMaxBytes = 30;
  static constexpr int kLogEntries = 15;
  static constexpr size_t kNumEntries = size_t{1} << kLogEntries;  // * 64 bytes = 2 MiB

  // A cache line each.
  struct alignas(64) Entry {
    uint8_t num_bytes = 0;  // 0: empty
    uint8_t num_ids = 0;
    char bytes[kMaxBytes] = {};
    int32_t ids[kMaxIds] = {};
  };
  static_assert(sizeof(Entry) == 64);

  static size_t Place(absl::string_view piece) {
    constexpr uint64_t kMix = 0x9E3779B97F4A7C15u;
    uint64_t hash = piece.size() * kMix;
    size_t at = 0;
    for (; at + 8 <= piece.size(); at += 8) hash = (hash ^ Load(piece.data() + at, 8)) * kMix, hash ^= hash >> 32;
    if (at < piece.size()) hash = (hash ^ Load(piece.data() + at, piece.size() - at)) * kMix;
    return static_cast<size_t>((hash ^ hash >> 29) * kMix >> (64 - kLogEntries));
  }
  static uint64_t Load(const char* from, size_t num_bytes) {
    uint64_t word = 0;
    std::memcpy(&word, from, num_bytes);
    return word;
  }

  std::unique_ptr<Entry[]> entries_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_PIECE_CACHE_H_
