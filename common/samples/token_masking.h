#ifndef EPS_COMMON_SAMPLES_TOKEN_MASKING_H_
#define EPS_COMMON_SAMPLES_TOKEN_MASKING_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/spec/run_config.h"

namespace eps {

// Masks one sample: of the tokens whose label is theirs (the others have -100, and stay as they are) `mask.share` are
// chosen, each by itself; those keep their label, the others lose it. A chosen token becomes the mask token (80%), one of
// the vocabulary (10%) or stays (10%). Source: Devlin et al., arXiv:1810.04805, section 3.1.
//
// A function of its arguments alone. `place`: of the sample in the run's sequence of samples, so that every epoch masks
// anew. Random numbers: Philox, keyed by the seed; the counter is the place and the token's index.
void MaskTokens(const MaskConfig& mask, int64_t vocab, uint64_t seed, int64_t place, absl::Span<int32_t> tokens,
                absl::Span<int32_t> labels);

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_TOKEN_MASKING_H_
