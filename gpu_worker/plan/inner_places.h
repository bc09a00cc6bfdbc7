#ifndef EPS_GPU_WORKER_PLAN_INNER_PLACES_H_
#define EPS_GPU_WORKER_PLAN_INNER_PLACES_H_

#include <cstdint>
#include <vector>

namespace eps::worker {

// What becomes of the inner activations of a block and a micro-batch between its forward and its backward.
enum class InnerPlace : uint8_t {
  kRecompute,  // dropped; the forward is run again
  kKeep,       // stay in a slot of the device, which nothing else uses in between
  kSwap,       // go to the host and come back, unless they are in a slot that is not asked for in between
};

// Of the (block, micro-batch)s of the largest pass that have a backward some time after their forward.
struct InnerCounts {
  int64_t total = 0;
  int64_t kept = 0, swapped = 0;  // the rest is recomputed

  int64_t recomputed() const { return total - kept - swapped; }
  bool keeps_all() const { return kept == total; }
  friend bool operator==(const InnerCounts&, const InnerCounts&) = default;
};

// The places for a pass of `total` of them, in the order of their forward. Kept are the last ones: the way back begins
// with them, and the slots that they leave take what was swapped (KARMA, arXiv:2008.11421). Swapped and recomputed ones
// alternate as evenly as their numbers allow, so that what is swapped travels under what is recomputed. In a pass
// smaller than the largest, as many are kept and the same share of the others is swapped.
std::vector<InnerPlace> SpreadInner(const InnerCounts& of_largest, int64_t total);

// Whether so many slots suffice. What is kept has a slot from its forward to its backward. What is not kept needs one
// during its own turn, beside what is kept then: forward, what came before it; backward (last block first,
// micro-batches in forward order), what is still to come.
// places: by block and micro-batch, of which each block has `items`
// depth_first_blocks: so many follow them, which need a slot each beside all that are kept
bool InnerFits(const std::vector<InnerPlace>& places, int64_t items, int64_t slots, int64_t depth_first_blocks);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_INNER_PLACES_H_
