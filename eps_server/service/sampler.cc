#include "eps_server/service/sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/numeric/philox.h"

namespace eps::server {
namespace {

// In [0, 1), of 53 bits.
double Uniform(uint64_t seed, int64_t index) {
  const auto bits = Philox(RandomKey{.seed = seed, .step = index}.philox(), {0, 0, 0, 0});
  const uint64_t wide = uint64_t{bits[0]} << 32 | bits[1];
  return static_cast<double>(wide >> 11) * 0x1.0p-53;
}

}  // namespace

absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingOptions& options, int64_t index) {
  for (size_t token = 0; token < logits.size(); ++token) {
    if (std::isnan(logits[token])) return absl::DataLossError(absl::StrCat("the logit of token ", token, " is NaN"));
  }
  std::vector<int32_t> tokens(logits.size());
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) { return logits[a] != logits[b] ? logits[a] > logits[b] : a < b; };
  const auto best = std::min_element(tokens.begin(), tokens.end(), likelier);
  if (options.temperature == 0 || options.top_k == 1) return *best;
  const double highest = logits[*best];
  if (!std::isfinite(highest)) return absl::DataLossError(absl::StrCat("the highest logit is ", highest));
  if (options.top_k > 0 && static_cast<size_t>(options.top_k) < tokens.size()) {
    std::nth_element(tokens.begin(), tokens.begin() + options.top_k, tokens.end(), likelier);
    tokens.resize(options.top_k);
    std::sort(tokens.begin(), tokens.end());  // nth_element's order is the library's own
  }
  std::vector<double> cumulative(tokens.size());
  double total = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    total += std::exp((logits[tokens[i]] - highest) / options.temperature);
    cumulative[i] = total;
  }
  const double at = Uniform(options.seed, index) * total;
  const auto drawn = std::upper_bound(cumulative.begin(), cumulative.end(), at);
  return tokens[std::min<size_t>(drawn - cumulative.begin(), tokens.size() - 1)];
}

}  // namespace eps::server
