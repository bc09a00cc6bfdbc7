#ifndef EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_H_
#define EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/update_scalars.h"
#include "eps_server/store/store.h"

namespace eps::server {

// The kernels over one chunk: sum of its contributions, norm, update, next wire form. Vector code
// is chosen at run time; the same bits at any width. Every element count is a multiple of
// kTensorAlignElems: there are no tails.
//
// Cost: one pass. An update with a 16-bit wire reads 2 (wire) + 2 (rest) + 8 (moments) +
// contributions and writes 2 + 2 + 8 bytes per element; with an FP16 wire 4 (master) + 8 and 4 + 2 + 8. Moments in bf16
// are 4 each way in place of 8, in fp8 a little more than 2. LAMB has a pass before it that reads all of this and
// writes nothing.

// FAILED_PRECONDITION if this processor's vectors have no fused multiply-add: other bits.
absl::Status CheckVectorUnit();

// Elements [begin, end) of a chunk, multiples of kTensorAlignElems: of tensors of one TensorGroup.
struct GroupRange {
  int64_t begin = 0;
  int64_t end = 0;
  int group = 0;  // of UpdateScalars::groups
};

// Updates the chunk by the sum of `gradient`. `ranges` cover it. sum_of_squares, if not null, gets
// that of the unscaled sum: not finite exactly if some element of the sum is not.
void UpdateChunk(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const GroupRange> ranges,
                 const UpdateScalars& scalars, double* sum_of_squares);

// Sums of squares, in fp64.
struct StepSquares {
  double weights = 0;
  double step = 0;  // of LAMB's u: update_scalars.h

  friend bool operator==(const StepSquares&, const StepSquares&) = default;
};
// LAMB's pass before UpdateChunk, which writes nothing: of each range what its trust ratio is made of. `squares` has
// as many elements as `ranges`. Returns the unscaled sum's squares, as UpdateChunk has them. Element i into lane i mod
// 16 of its range, the lanes in order.
double MeasureSteps(const ChunkState& chunk, const ChunkGradient& gradient, absl::Span<const GroupRange> ranges,
                    const UpdateScalars& scalars, absl::Span<StepSquares> squares);

// The sum of `gradient` into `sum` (num_elems of it) if that is not null, and its sum of squares:
// element i into lane i mod 16, the lanes in order, in fp64.
double SumChunk(const ChunkGradient& gradient, int64_t num_elems, float* sum);

}  // namespace eps::server

#endif  // EPS_SERVER_OPTIMIZER_CHUNK_KERNELS_H_
