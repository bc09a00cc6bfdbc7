#include "eps_server/step/expert_load.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>

#include "common/base/status_macros.h"

namespace eps::server {

std::optional<ExpertLoad> LoadOf(absl::Span<const int64_t> rows, const ToldExperts& told) {
  EPS_CHECK(rows.size() == static_cast<size_t>(told.size()));
  ExpertLoad result = {.experts = told.experts};
  int64_t blocks = 0;
  for (int64_t block = 0; block < told.blocks; ++block) {
    const auto of_block = rows.subspan(static_cast<size_t>(block * told.experts), static_cast<size_t>(told.experts));
    const auto sum = static_cast<double>(std::accumulate(of_block.begin(), of_block.end(), int64_t{0}));
    if (sum == 0) {
      result.load.insert(result.load.end(), of_block.size(), std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    const double even = sum / static_cast<double>(told.experts);
    for (const int64_t each : of_block) result.load.push_back(static_cast<float>(static_cast<double>(each) / even));
    const auto most = std::max_element(of_block.begin(), of_block.end());
    const double load = static_cast<double>(*most) / even;
    if (load > result.busiest) {
      result.busiest = load;
      result.busiest_block = block;
      result.busiest_expert = most - of_block.begin();
    }
    result.mean_busiest += load;
    result.idle += std::count(of_block.begin(), of_block.end(), 0);
    ++blocks;
  }
  if (blocks == 0) return std::nullopt;
  result.mean_busiest /= static_cast<double>(blocks);
  result.running = blocks * told.experts;
  return result;
}

}  // namespace eps::server
