#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUBLASLT_LIBRARY_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUBLASLT_LIBRARY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cublasLt.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {

// Matrix products by cuBLASLt, which is loaded when this is made. The algorithm of a shape is the first that the
// library's heuristic offers: the same for every process with this version of it and this model of GPU.
//
// Threads: one at a time
class CublasLtLibrary {
 public:
  // `workspace`: kMatMulWorkspaceBytes of the device, used by one stream.
  // Errors: FAILED_PRECONDITION the library is not found, or its version is another
  static absl::StatusOr<std::unique_ptr<CublasLtLibrary>> Load(void* workspace);
  ~CublasLtLibrary();

  absl::Status MatMul(cudaStream_t stream, const MatMulProblem& problem);
  std::string version() const;

 private:
  struct Api;
  struct Prepared;
  CublasLtLibrary(std::unique_ptr<Api> api, void* workspace);
  absl::StatusOr<const Prepared*> Prepare(const LtShape& shape);

  const std::unique_ptr<Api> api_;
  void* const workspace_;
  cublasLtHandle_t handle_ = nullptr;

  std::map<LtShape, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUBLASLT_LIBRARY_H_
