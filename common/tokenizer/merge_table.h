#ifndef EPS_COMMON_TOKENIZER_MERGE_TABLE_H_
#define EPS_COMMON_TOKENIZER_MERGE_TABLE_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace eps {

// What two neighbouring tokens become, and how early. Open addressing with the answer beside the key: a search that
// finds nothing, which is the usual one, touches one cache line.
class MergeTable {
 public:
  static constexpr uint32_t kNoRank = UINT32_MAX;
  struct Merge {
    uint32_t rank = kNoRank;  // kNoRank: there is none
    int32_t id = -1;
  };

  static uint64_t Pair(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }

  explicit MergeTable(size_t num_merges) : slots_(std::bit_ceil(num_merges * 2 + 1)) {}

  // A pair that is there already gets the new merge. At most as many pairs as it was made for.
  void Put(uint64_t pair, Merge merge) { slots_[Find(pair)] = {pair, merge}; }
  Merge Get(uint64_t pair) const { return slots_[Find(pair)].merge; }

 private:
  struct Slot {
    uint64_t pair = 0;
    Merge merge;  // without a rank: the slot is free
  };

  size_t Find(uint64_t pair) const {
    const size_t mask = slots_.size() - 1;
    size_t at = static_cast<size_t>((pair * 0x9E3779B97F4A7C15u) >> 20) & mask;
    while (slots_[at].merge.rank != kNoRank && slots_[at].pair != pair) at = (at + 1) & mask;
    return at;
  }

  std::vector<Slot> slots_;
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_MERGE_TABLE_H_
