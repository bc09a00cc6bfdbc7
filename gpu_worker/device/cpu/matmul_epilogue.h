#ifndef EPS_GPU_WORKER_DEVICE_CPU_MATMUL_EPILOGUE_H_
#define EPS_GPU_WORKER_DEVICE_CPU_MATMUL_EPILOGUE_H_

#include <cstdint>

#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cpu {

// A part of c whose product is known.
struct OutputBlock {
  int64_t row = 0, column = 0;
  int64_t num_rows = 0, num_columns = 0;
  const float* sums = nullptr;  // (num_rows, num_columns): the product; where c has the block, or apart
  int64_t sums_row = 0;         // floats between its rows
  bool past_caches = false;     // whether `activated`, and c if the sums are apart, are written past the caches
};

// Bias, activation, and residual with dropout. scratch: a random word for each column and 128 more
void MatMulEpilogue(const MatMulArgs& args, const DropoutPlan& dropout, const OutputBlock& block, float* scratch);

}  // namespace eps::worker::cpu

#endif  // EPS_GPU_WORKER_DEVICE_CPU_MATMUL_EPILOGUE_H_
