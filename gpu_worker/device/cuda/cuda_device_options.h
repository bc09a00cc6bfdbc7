#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDA_DEVICE_OPTIONS_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDA_DEVICE_OPTIONS_H_

#include <cstdint>
#include <string>

#include "common/spec/graph_use.h"
#include "common/tensor/dtype.h"

namespace eps::worker::cuda {

struct CudaDeviceOptions {
  std::string name = "cuda:0";
  int64_t arena_bytes = 0;       // the user's cap, > 0: one allocation
  Dtype act = Dtype::kBf16;      // the compute dtype
  bool tf32 = false;             // act fp32 only: products of operands that may be rounded to TF32
  bool plain_attention = false;  // our own kernel's, also where a library would do
  GraphUse graphs = GraphUse::kAuto;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDA_DEVICE_OPTIONS_H_
