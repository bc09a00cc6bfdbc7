#include "gpu_worker/device/cuda/loaded_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace eps::worker::cuda {

absl::StatusOr<LoadedLibrary> LoadedLibrary::Open(const std::string& name) {
  std::vector<std::string> paths = {name};
  if (const char* toolkit = std::getenv("CUDA_PATH")) paths.push_back(absl::StrCat(toolkit, "/lib64/", name));
  paths.push_back(absl::StrCat("/usr/local/cuda/lib64/", name));
  std::string errors;
  for (const std::string& path : paths) {
    if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return LoadedLibrary(name, handle);
    absl::StrAppend(&errors, "\n  ", dlerror());
  }
  return absl::FailedPreconditionError(absl::StrCat(
      name, " cannot be loaded; install the CUDA toolkit's libraries, or say in CUDA_PATH where it is:", errors));
}

absl::Status LoadedLibrary::FindAddress(const char* function, void** found) const {
  *found = dlsym(handle_, function);
  if (*found != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(name_, " has no ", function, ": its version is another"));
}

}  // namespace eps::worker::cuda
