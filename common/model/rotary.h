#ifndef EPS_COMMON_MODEL_ROTARY_H_
#define EPS_COMMON_MODEL_ROTARY_H_

#include <cstdint>
#include <vector>

#include "common/model/model_config.h"

namespace eps {

// (num_positions, head_dim): of each position head_dim / 2 cosines, then as many sines, of position * frequency i. In
// fp64, rounded once. With kYarn all are longer, by its attention_factor.
std::vector<float> RotaryTable(const RotaryConfig& rotary, int64_t head_dim, int64_t num_positions);

// theta^(-2i / head_dim), scaled as `rotary` says, for i below head_dim / 2.
std::vector<double> RotaryFrequencies(const RotaryConfig& rotary, int64_t head_dim);

}  // namespace eps

#endif  // EPS_COMMON_MODEL_ROTARY_H_
