#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUBLASLT_LIBRARY_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUBLASLT_LIBRARY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cublasLt.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"

namespace eps::worker::cuda {

// Matrix products by cuBLASLt, which is loaded when this is made. The algorithm of a shape is the one that was told, or
// the first that the library's heuristic offers.
//
// An algorithm as text is cublasLtMatmulAlgo_t's 64 bytes in hexadecimal digits, which cublasLt.h allows to keep for the
// same version of the library. Sums that are split are taken only where they stay fp32 and are added in a step of their
// own; cuBLAS's guide promises the same bits at every run, with a workspace of one stream.
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

  // As GpuRuntime's of these names.
  absl::StatusOr<std::vector<std::string>> Algorithms(const LtShape& shape, int most);
  absl::Status UseAlgorithm(const LtShape& shape, const std::string& algorithm);

 private:
  struct Api;
  struct Prepared;
  CublasLtLibrary(std::unique_ptr<Api> api, void* workspace);
  absl::StatusOr<Prepared*> Prepare(const LtShape& shape);
  absl::StatusOr<std::vector<cublasLtMatmulAlgo_t>> Heuristic(const LtShape& shape, const Prepared& prepared, int most);
  // The library takes the alignment of a bias from its address.
  absl::Status SetBias(const Prepared& prepared, const void* bias);
  // Whether its sums are in the same order each time, and rounded once.
  absl::Status CheckReduction(const cublasLtMatmulAlgo_t& algorithm);

  const std::unique_ptr<Api> api_;
  void* const workspace_;
  cublasLtHandle_t handle_ = nullptr;

  std::map<LtShape, std::unique_ptr<Prepared>> prepared_;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUBLASLT_LIBRARY_H_
