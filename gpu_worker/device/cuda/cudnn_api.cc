#include "gpu_worker/device/cuda/cudnn_api.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "cuda_runtime_api.h"
#include "cudnn_graph.h"
#include "cudnn_version.h"
#include "gpu_worker/device/cuda/loaded_library.h"

namespace eps::worker::cuda {
namespace {

constexpr size_t kMajor = 9;
static_assert(CUDNN_MAJOR == kMajor);
// Before it backward accesses memory that is not its own, where T is not a multiple of 128 and nothing is padded, above
// all when it is replayed from a graph (cudnn-frontend's release notes of 1.16.0).
constexpr size_t kLeastVersion = 91501;
// Of GPUs from Blackwell on: NVIDIA asks for the same bits each time in no older one (Transformer Engine's rule; the front
// end's is 9.18.0).
constexpr int kBlackwell = 10;
constexpr size_t kLeastVersionOfBlackwell = 91801;

std::string VersionName(size_t version) {
  return absl::StrCat(version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

}  // namespace

absl::Status CheckCudnnVersion(size_t version, int sm_major) {
  const size_t least = sm_major >= kBlackwell ? kLeastVersionOfBlackwell : kLeastVersion;
  if (version / 10000 == kMajor && version >= least) return absl::OkStatus();
  const std::string of = sm_major == 0 ? "" : absl::StrCat(" for sm_", sm_major, "x");
  return absl::FailedPreconditionError(absl::StrCat(
      "cuDNN is ", VersionName(version), "; this build wants ", kMajor, ".x, from ", VersionName(least), " on", of,
      "; a newer one's folder may come first in LD_LIBRARY_PATH: PyTorch's packages have nvidia/cudnn/lib"));
}

absl::StatusOr<std::unique_ptr<CudnnApi>> CudnnApi::Load(const std::string& name) {
  auto api = std::make_unique<CudnnApi>();
  EPS_ASSIGN_OR_RETURN(api->library, LoadedLibrary::Open(name));
#define EPS_CUDNN_FIND(name) EPS_RETURN_IF_ERROR(api->library.Find(#name, &api->name))
  EPS_CUDNN_FIND(cudnnGetVersion);
  EPS_RETURN_IF_ERROR(CheckCudnnVersion(api->cudnnGetVersion()));
  EPS_CUDNN_FIND(cudnnGetErrorString);
  EPS_CUDNN_FIND(cudnnGetLastErrorString);
  EPS_CUDNN_FIND(cudnnCreate);
  EPS_CUDNN_FIND(cudnnDestroy);
  EPS_CUDNN_FIND(cudnnSetStream);
  EPS_CUDNN_FIND(cudnnBackendCreateDescriptor);
  EPS_CUDNN_FIND(cudnnBackendDestroyDescriptor);
  EPS_CUDNN_FIND(cudnnBackendSetAttribute);
  EPS_CUDNN_FIND(cudnnBackendGetAttribute);
  EPS_CUDNN_FIND(cudnnBackendFinalize);
  EPS_CUDNN_FIND(cudnnBackendExecute);
#undef EPS_CUDNN_FIND
  // What compiles engines' kernels. The library loads these 109 MB for each plan anew, and leaks where they are unloaded in
  // between: so they stay. Where they are not, a plan that wants them says so.
  const auto compiler = LoadedLibrary::Open(absl::StrCat("libnvrtc.so.", CUDART_VERSION / 1000));
  int (*nvrtcVersion)(int* major, int* minor) = nullptr;
  int major = 0, minor = 0;
  if (compiler.ok() && compiler->Find("nvrtcVersion", &nvrtcVersion).ok() && nvrtcVersion(&major, &minor) == 0) {
    api->compiler = absl::StrCat("nvrtc-", major, ".", minor);
  }
  return api;
}

absl::Status CudnnApi::Check(cudnnStatus_t status, const char* call) const {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = absl::StrCat(call, ": ", cudnnGetErrorString(status), " (", LastError(), ")");
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_NOT_SUPPORTED) return absl::UnimplementedError(message);
  if (status == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED) return absl::AbortedError(message);
  if (status == CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED ||
      status == CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED) {
    return absl::ResourceExhaustedError(message);
  }
  return absl::InternalError(message);
}

std::string CudnnApi::LastError() const {
  std::array<char, 1024> said = {};
  cudnnGetLastErrorString(said.data(), said.size() - 1);
  return said.data();
}

std::string CudnnApi::version() const {
  return absl::StrCat("cudnn-", VersionName(cudnnGetVersion()), compiler.empty() ? "" : " ", compiler);
}

absl::StatusOr<CudnnDescriptor> CudnnDescriptor::New(const CudnnApi* api, cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t descriptor = nullptr;
  EPS_RETURN_IF_ERROR(api->Check(api->cudnnBackendCreateDescriptor(type, &descriptor), "cudnnBackendCreateDescriptor"));
  return CudnnDescriptor(api, descriptor);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : api_(other.api_), descriptor_(std::exchange(other.descriptor_, nullptr)) {}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(api_, other.api_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) api_->cudnnBackendDestroyDescriptor(descriptor_);
}

absl::Status CudnnDescriptor::SetArray(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                       int64_t count, const void* elements) {
  const cudnnStatus_t status = api_->cudnnBackendSetAttribute(descriptor_, name, type, count, elements);
  return Annotate(api_->Check(status, "cudnnBackendSetAttribute"), absl::StrCat("attribute ", name));
}

absl::Status CudnnDescriptor::Set(cudnnBackendAttributeName_t name, absl::Span<const CudnnDescriptor> values) {
  std::vector<cudnnBackendDescriptor_t> descriptors;
  for (const CudnnDescriptor& value : values) descriptors.push_back(value.get());
  return SetArray(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(descriptors.size()), descriptors.data());
}

absl::Status CudnnDescriptor::Finalize() {
  return api_->Check(api_->cudnnBackendFinalize(descriptor_), "cudnnBackendFinalize");
}

absl::StatusOr<int64_t> CudnnDescriptor::GetArray(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                                  int64_t count, void* elements) const {
  int64_t there = 0;
  const cudnnStatus_t status = api_->cudnnBackendGetAttribute(descriptor_, name, type, count, &there, elements);
  EPS_RETURN_IF_ERROR_WITH(api_->Check(status, "cudnnBackendGetAttribute"), absl::StrCat("attribute ", name));
  return there;
}

absl::StatusOr<std::vector<CudnnDescriptor>> CudnnDescriptor::GetDescriptors(cudnnBackendAttributeName_t name,
                                                                             cudnnBackendDescriptorType_t type) const {
  EPS_ASSIGN_OR_RETURN(const int64_t count, GetArray(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, nullptr));
  std::vector<CudnnDescriptor> values;
  std::vector<cudnnBackendDescriptor_t> filled;  // the library writes into descriptors that are there
  for (int64_t i = 0; i < count; ++i) {
    EPS_ASSIGN_OR_RETURN(CudnnDescriptor value, New(api_, type));
    filled.push_back(value.get());
    values.push_back(std::move(value));
  }
  EPS_ASSIGN_OR_RETURN(const int64_t written, GetArray(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, filled.data()));
  values.erase(values.begin() + std::min(written, count), values.end());
  return values;
}

}  // namespace eps::worker::cuda
