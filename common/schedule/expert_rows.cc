#include "common/schedule/expert_rows.h"

#include <cstddef>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace eps {

ToldExperts ToldExpertsOf(const ModelConfig& model, int num_vnodes) {
  const ToldExperts told = {
      .blocks = model.num_layers, .experts = model.experts.num, .per_token = model.experts.per_token};
  const bool are_few = told.size() <= kMostToldExperts && told.size() * num_vnodes <= kMostToldNumbers;
  return model.experts.are_on() && are_few ? told : ToldExperts();
}

absl::Status CheckExpertRows(absl::Span<const uint32_t> rows, const ToldExperts& told, int64_t num_tokens) {
  if (rows.size() != static_cast<size_t>(told.size())) {
    return absl::InvalidArgumentError(absl::StrCat(rows.size(), " numbers, want ", told.size(), ", one for each of ",
                                                   told.experts, " experts of ", told.blocks, " blocks"));
  }
  const int64_t routed = num_tokens * told.per_token;
  for (int64_t block = 0; block < told.blocks; ++block) {
    const auto of_block = rows.subspan(static_cast<size_t>(block * told.experts), static_cast<size_t>(told.experts));
    const int64_t sum = std::accumulate(of_block.begin(), of_block.end(), int64_t{0});
    if (sum != routed && sum != 0) {
      return absl::InvalidArgumentError(absl::StrCat("block ", block, " has ", sum, " rows, want ", routed, ": ",
                                                     told.per_token, " for each of ", num_tokens,
                                                     " tokens; or 0, if the step leaves it out"));
    }
  }
  return absl::OkStatus();
}

}  // namespace eps
