#ifndef EPS_COMMON_SCHEDULE_SOURCE_MIX_H_
#define EPS_COMMON_SCHEDULE_SOURCE_MIX_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/schedule/sample_order.h"

namespace eps {

// The nth sample, from 0, that a run takes of one of its sources.
struct SourcePick {
  int source = 0;
  int64_t nth = 0;
  friend bool operator==(const SourcePick&, const SourcePick&) = default;
};

// From which of several sources each place of the run's endless sequence of samples is filled: a function of the weights,
// the order and the seed alone, so that a resumed run goes on exactly.
//
// The sequence consists of blocks, in each of which every source has its share to the sample. A block's length is the
// least, up to kMaxBlock, at which all shares are whole numbers: weights 1 and 3 make blocks of 4. Where there is none,
// shares are rounded to a kMaxBlock-th, none to nothing. SEQUENTIAL: in a block, the source whose share is furthest behind
// is next, so no stretch is far from the weights. SHUFFLED: the places of that are permuted, anew for each block.
//
// Threads: safe; fixed after construction. Memory: 4 bytes a place of a block.
class SourceMix {
 public:
  static constexpr int64_t kMaxBlock = 4096;

  // weights: at least one and at most kMaxBlock; each finite and greater than 0.
  SourceMix(absl::Span<const double> weights, bool shuffled, uint64_t seed);

  // Of places [first, first + count). Of each source the nth rise by one from place to place. Cost: O(count + a block)
  std::vector<SourcePick> Picks(int64_t first, int64_t count) const;

  // In each block, by source.
  const std::vector<int64_t>& shares() const { return shares_; }

 private:
  std::vector<int64_t> shares_;
  std::vector<int> sources_;  // of a block's places, before they are permuted
  SampleOrder order_;         // of the places
};

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_SOURCE_MIX_H_
