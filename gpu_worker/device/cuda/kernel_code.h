#ifndef EPS_GPU_WORKER_DEVICE_CUDA_KERNEL_CODE_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_KERNEL_CODE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace eps::worker::cuda {

// What a GPU runs of our own kernels, as cudaFuncGetAttributes says of each of them: all are compiled for the same GPUs.
struct KernelCode {
  int ptx = 0;      // of which PTX it was made: 80 is compute_80
  int machine = 0;  // for which GPU: 90 is sm_90
};

// A part of the device model, as two compilers may round otherwise: "kernels of CUDA 13.0 for sm_86", where nvcc made the
// machine code; "kernels of CUDA 13.0 from compute_80 by CUDA 13.1's driver", where the driver made it for a GPU that nvcc was not
// asked to compile for.
//
// toolkit, driver: versions of CUDA, "13.0": nvcc's, and the driver's
std::string NameOf(const KernelCode& code, absl::string_view toolkit, absl::string_view driver);

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_KERNEL_CODE_H_
