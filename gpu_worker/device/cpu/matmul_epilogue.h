#ifndef EPS_GPU_WORKER_DEVICE_CPU_MATMUL_EPILOGUE_H_
#define EPS_GPU_WORKER_DEVICE_CPU_MATMUL_EPILOGUE_H_

#include <cstdint>

#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

struct OutputTile {
  int64_t row = 0, column = 0;
  int64_t num_rows = 0, num_columns = 0;
};

// Bias, activation, and residual with dropout on a tile of c that holds the product.
void MatMulEpilogue(const MatMulArgs& args, const DropoutPlan& dropout, const OutputTile& tile, float* scratch);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_MATMUL_EPILOGUE_H_
