#ifndef EPS_SERVER_SERVICE_SAMPLER_H_
#define EPS_SERVER_SERVICE_SAMPLER_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps::server {

// How a token is drawn from logits.
struct SamplingOptions {
  double temperature = 1;  // finite, >= 0; 0 takes the most likely token
  int top_k = 0;           // the most likely ones to draw from; 0: all
  uint64_t seed = 0;
};

// The token at position `index` of a text: a pure function of its arguments. Of equal logits the lower token goes first.
// Errors: DATA_LOSS a logit is not a number, or the highest is infinite (an infinitely low one is never drawn)
absl::StatusOr<int32_t> SampleToken(absl::Span<const float> logits, const SamplingOptions& options, int64_t index);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_SAMPLER_H_
