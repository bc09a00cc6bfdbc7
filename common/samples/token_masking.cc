#include "common/samples/token_masking.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "common/base/status_macros.h"
#include "common/numeric/philox.h"
#include "common/schedule/vnode_batch.h"

namespace eps {
namespace {

constexpr uint64_t kPurpose = 0x6D61736B;  // "mask": other numbers than those of the samples' order
constexpr double kTwoTo32 = 4294967296.0;

}  // namespace

void MaskTokens(const MaskConfig& mask, int64_t vocab, uint64_t seed, int64_t place, absl::Span<int32_t> tokens,
                absl::Span<int32_t> labels) {
  EPS_CHECK(tokens.size() == labels.size() && mask.token >= 0);
  const uint64_t mixed = Mix64(Mix64(seed) ^ kPurpose);
  const PhiloxKey key{static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
  const auto at = static_cast<uint64_t>(place);
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (labels[i] == kNotCounted) continue;
    const std::array<uint32_t, 4> random =
        Philox(key, {static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), static_cast<uint32_t>(i), 0});
    const bool is_chosen = random[0] < mask.share * kTwoTo32;
    const bool may_be = std::find(mask.never.begin(), mask.never.end(), tokens[i]) == mask.never.end();
    if (!is_chosen || !may_be) {
      labels[i] = kNotCounted;
    } else if (random[1] < 0.8 * kTwoTo32) {
      tokens[i] = mask.token;
    } else if (random[1] < 0.9 * kTwoTo32) {
      tokens[i] = static_cast<int32_t>((uint64_t{random[2]} * static_cast<uint64_t>(vocab)) >> 32);
    }
  }
}

}  // namespace eps
