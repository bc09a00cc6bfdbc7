#include "gpu_worker/plan/inner_places.h"

#include <algorithm>

namespace eps::worker {

std::vector<InnerPlace> SpreadInner(const InnerCounts& of_largest, int64_t total) {
  const int64_t kept = std::min(of_largest.kept, total);
  const int64_t others = total - kept;
  const int64_t most_others = of_largest.total - of_largest.kept;
  const int64_t swapped = most_others > 0 ? others * of_largest.swapped / most_others : 0;
  std::vector<InnerPlace> places(static_cast<size_t>(total), InnerPlace::kKeep);
  for (int64_t i = 0; i < others; ++i) {
    const bool swaps = (i + 1) * swapped / others > i * swapped / others;
    places[static_cast<size_t>(i)] = swaps ? InnerPlace::kSwap : InnerPlace::kRecompute;
  }
  return places;
}

bool InnerFits(const std::vector<InnerPlace>& places, int64_t items, int64_t slots, int64_t depth_first_blocks) {
  int64_t kept = 0;
  for (const InnerPlace place : places) {
    if (place == InnerPlace::kKeep) ++kept;
    if (kept + (place == InnerPlace::kKeep ? 0 : 1) > slots) return false;
  }
  if (kept + depth_first_blocks > slots) return false;
  const auto total = static_cast<int64_t>(places.size());
  for (int64_t first = total - items; first >= 0; first -= items) {
    for (int64_t item = 0; item < items; ++item) {
      const bool keeps = places[static_cast<size_t>(first + item)] == InnerPlace::kKeep;
      if (!keeps && kept + 1 > slots) return false;
      if (keeps) --kept;
    }
  }
  return true;
}

}  // namespace eps::worker
