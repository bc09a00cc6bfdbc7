#ifndef EPS_GPU_WORKER_DEVICE_CPU_EXPERTS_H_
#define EPS_GPU_WORKER_DEVICE_CPU_EXPERTS_H_

#include <cstdint>
#include <vector>

#include "gpu_worker/device/cpu/matmul.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// Tokens [begin, end): which experts, and into scratch (M, K) floats their weights.
void ChooseExperts(const RouteArgs& args, int64_t begin, int64_t end);
// The rest of the routing, in the calling thread: some ten nanoseconds a routed row, beside whose products that is nothing.
void GroupRows(const RouteArgs& args);
// Tokens [begin, end).
void RouteBackwardRows(const RouteBackwardArgs& args, int64_t begin, int64_t end);
// Routed rows [begin, end).
void GatherRowsRange(const GatherRowsArgs& args, int64_t begin, int64_t end);
// Tokens [begin, end).
void SumRowsRange(const SumRowsArgs& args, int64_t begin, int64_t end);

// A product for each expert, cut in tiles as any other is: by its own number of rows.
class ExpertProducts {
 public:
  explicit ExpertProducts(const ExpertMatMulArgs& args);
  explicit ExpertProducts(const ExpertGradientArgs& args);

  int64_t num_tiles() const { return first_tile_.back(); }
  // scratch: the thread's, kTileScratchFloats
  void Tile(int64_t tile, float* scratch) const;

 private:
  void Add(const MatMulArgs& product);

  std::vector<MatMulArgs> products_;
  std::vector<MatMulTiling> tilings_;
  std::vector<int64_t> first_tile_ = {0};  // of each product, and one behind the last
};

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_EXPERTS_H_
