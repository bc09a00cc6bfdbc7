#include "common/schedule/source_mix.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/status_macros.h"
#include "common/numeric/philox.h"

namespace eps {
namespace {

constexpr uint64_t kMixKey = 0x6d69786564;  // another permutation than those of the sources' own samples

// Each weight's part of 1.
std::vector<double> Parts(absl::Span<const double> weights) {
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0;  // of weights over the largest, so that it is finite
  for (const double weight : weights) sum += weight / largest;
  std::vector<double> parts;
  for (const double weight : weights) parts.push_back(weight / largest / sum);
  return parts;
}

// `parts` of `block`, if all are whole numbers; else empty.
std::vector<int64_t> WholeShares(const std::vector<double>& parts, int64_t block) {
  constexpr double kWhole = 1e-9;  // far above what rounding a weight makes of it, far below a kMaxBlock-th
  std::vector<int64_t> shares;
  for (const double part : parts) {
    const double share = part * static_cast<double>(block);
    if (std::llround(share) < 1 || std::abs(share - std::round(share)) > kWhole) return {};
    shares.push_back(std::llround(share));
  }
  return shares;
}

// At least 1 each, and what is left by the largest remainder; of equal ones the first source's.
std::vector<int64_t> RoundedShares(const std::vector<double>& parts, int64_t block) {
  std::vector<int64_t> shares;
  for (const double part : parts) {
    shares.push_back(std::max<int64_t>(1, static_cast<int64_t>(part * static_cast<double>(block))));
  }
  const auto behind = [&](size_t i) { return parts[i] * static_cast<double>(block) - static_cast<double>(shares[i]); };
  int64_t missing = block - std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<size_t> sources(parts.size());
  std::iota(sources.begin(), sources.end(), size_t{0});
  const auto less_behind = [&](size_t a, size_t b) { return behind(a) < behind(b); };
  for (; missing > 0; --missing) ++shares[*std::max_element(sources.begin(), sources.end(), less_behind)];
  for (; missing < 0; ++missing) --*std::max_element(shares.begin(), shares.end());  // many were raised to 1
  return shares;
}

std::vector<int64_t> SharesOf(absl::Span<const double> weights) {
  const std::vector<double> parts = Parts(weights);
  for (int64_t block = 1; block <= SourceMix::kMaxBlock; ++block) {
    std::vector<int64_t> shares = WholeShares(parts, block);
    if (!shares.empty()) return shares;
  }
  return RoundedShares(parts, SourceMix::kMaxBlock);
}

// The source whose share is furthest behind is next; of several, the first.
std::vector<int> Spread(const std::vector<int64_t>& shares) {
  const int64_t block = std::accumulate(shares.begin(), shares.end(), int64_t{0});
  std::vector<int64_t> given(shares.size());
  std::vector<int> sources;
  for (int64_t place = 0; place < block; ++place) {
    size_t next = 0;
    int64_t furthest = 0;  // in block-ths of a sample
    for (size_t i = 0; i < shares.size(); ++i) {
      const int64_t behind = shares[i] * (place + 1) - given[i] * block;
      if (given[i] < shares[i] && behind > furthest) {
        next = i;
        furthest = behind;
      }
    }
    ++given[next];
    sources.push_back(static_cast<int>(next));
  }
  EPS_CHECK(given == shares);
  return sources;
}

}  // namespace

SourceMix::SourceMix(absl::Span<const double> weights, bool shuffled, uint64_t seed)
    : shares_(SharesOf(weights)),
      sources_(Spread(shares_)),
      order_(static_cast<int64_t>(sources_.size()), shuffled, Mix64(seed ^ kMixKey)) {}

std::vector<SourcePick> SourceMix::Picks(int64_t first, int64_t count) const {
  const auto block = static_cast<int64_t>(sources_.size());
  std::vector<SourcePick> picks;
  picks.reserve(static_cast<size_t>(count));
  std::vector<int64_t> taken;  // by source: how many samples stand before `place`
  for (int64_t place = first / block * block; place < first + count; ++place) {
    if (place % block == 0) {
      taken = shares_;
      for (int64_t& samples : taken) samples *= place / block;
    }
    const int source = sources_[static_cast<size_t>(order_.SampleAt(place))];
    const int64_t nth = taken[static_cast<size_t>(source)]++;
    if (place >= first) picks.push_back({source, nth});
  }
  return picks;
}

}  // namespace eps
