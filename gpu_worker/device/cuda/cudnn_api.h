#ifndef EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_API_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_API_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cudnn_graph.h"
#include "gpu_worker/device/cuda/loaded_library.h"

namespace eps::worker::cuda {

// cuDNN's graph API, loaded when this is made: the functions that are used, by their own names.
//
// Threads: as cuDNN's: descriptors and handles from one thread at a time
struct CudnnApi {
  LoadedLibrary library;
  std::string compiler;  // of engines' kernels, with its version, as bits may depend on it; "": it was not found
  decltype(&::cudnnGetVersion) cudnnGetVersion = nullptr;
  decltype(&::cudnnGetErrorString) cudnnGetErrorString = nullptr;
  decltype(&::cudnnGetLastErrorString) cudnnGetLastErrorString = nullptr;
  decltype(&::cudnnCreate) cudnnCreate = nullptr;
  decltype(&::cudnnDestroy) cudnnDestroy = nullptr;
  decltype(&::cudnnSetStream) cudnnSetStream = nullptr;
  decltype(&::cudnnBackendCreateDescriptor) cudnnBackendCreateDescriptor = nullptr;
  decltype(&::cudnnBackendDestroyDescriptor) cudnnBackendDestroyDescriptor = nullptr;
  decltype(&::cudnnBackendSetAttribute) cudnnBackendSetAttribute = nullptr;
  decltype(&::cudnnBackendGetAttribute) cudnnBackendGetAttribute = nullptr;
  decltype(&::cudnnBackendFinalize) cudnnBackendFinalize = nullptr;
  decltype(&::cudnnBackendExecute) cudnnBackendExecute = nullptr;

  // `name`: as LoadedLibrary::Open wants it.
  // Errors: FAILED_PRECONDITION the library is not found, or its version is another
  static absl::StatusOr<std::unique_ptr<CudnnApi>> Load(const std::string& name = "libcudnn.so.9");

  // Errors: UNIMPLEMENTED the library does not support what was asked for · ABORTED code of its own does not compile ·
  //         RESOURCE_EXHAUSTED no memory · INTERNAL the rest; with the library's own words
  absl::Status Check(cudnnStatus_t status, const char* call) const;
  std::string LastError() const;  // of this thread, in the library's words; may be empty
  std::string version() const;    // and the compiler's
};

// `version`: as cudnnGetVersion says it. `sm_major`: of a GPU's compute capability; 0: what any GPU wants, as CudnnApi::Load.
// Errors: FAILED_PRECONDITION it is none for this build, or for this GPU
absl::Status CheckCudnnVersion(size_t version, int sm_major = 0);

// An opaque object of the graph API. The API outlives it.
class CudnnDescriptor {
 public:
  static absl::StatusOr<CudnnDescriptor> New(const CudnnApi* api, cudnnBackendDescriptorType_t type);
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;
  ~CudnnDescriptor();

  absl::Status SetArray(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                        const void* elements);
  template <typename T>
  absl::Status Set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, const T& value) {
    static_assert(!std::is_same_v<T, CudnnDescriptor>);
    return SetArray(name, type, 1, &value);
  }
  absl::Status Set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    return Set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, value.descriptor_);
  }
  absl::Status Set(cudnnBackendAttributeName_t name, absl::Span<const CudnnDescriptor> values);
  absl::Status Finalize();

  template <typename T>
  absl::StatusOr<T> Get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    T value = {};
    if (absl::Status status = GetArray(name, type, 1, &value).status(); !status.ok()) return status;
    return value;
  }
  // How many elements there are, of which at most `count` are written.
  absl::StatusOr<int64_t> GetArray(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                                   void* elements) const;
  // An attribute that is descriptors, of `type`.
  absl::StatusOr<std::vector<CudnnDescriptor>> GetDescriptors(cudnnBackendAttributeName_t name,
                                                              cudnnBackendDescriptorType_t type) const;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

 private:
  CudnnDescriptor(const CudnnApi* api, cudnnBackendDescriptor_t descriptor) : api_(api), descriptor_(descriptor) {}

  const CudnnApi* api_;
  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_CUDNN_API_H_
