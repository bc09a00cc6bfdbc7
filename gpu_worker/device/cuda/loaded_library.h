#ifndef EPS_GPU_WORKER_DEVICE_CUDA_LOADED_LIBRARY_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_LOADED_LIBRARY_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps::worker::cuda {

// A shared library that is loaded when it is first needed, so that programs start where it is not.
class LoadedLibrary {
 public:
  LoadedLibrary() = default;
  // `name`: as the loader knows it, "libcublasLt.so.13". Looked for where the loader looks, then in $CUDA_PATH/lib64 and
  // /usr/local/cuda/lib64. It stays loaded to the end of the process: NVIDIA's leave threads behind.
  // Errors: FAILED_PRECONDITION it is nowhere, with what the loader said
  static absl::StatusOr<LoadedLibrary> Open(const std::string& name);

  // Errors: FAILED_PRECONDITION it has no such function
  template <typename Fn>
  absl::Status Find(const char* function, Fn** found) const {
    return FindAddress(function, reinterpret_cast<void**>(found));
  }

 private:
  LoadedLibrary(std::string name, void* handle) : name_(std::move(name)), handle_(handle) {}
  absl::Status FindAddress(const char* function, void** found) const;

  std::string name_;
  void* handle_ = nullptr;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_LOADED_LIBRARY_H_
