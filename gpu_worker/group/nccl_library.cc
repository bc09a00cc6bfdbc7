#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/device/cuda/loaded_library.h"
#include "gpu_worker/group/nccl_api.h"
#include "nccl.h"

namespace eps::worker {
namespace {

// Communicators that do not block came with 2.14; what is asked of them here has been the same since 2.18.
constexpr int kLeastVersion = NCCL_VERSION(2, 18, 1);

// Thread blocks of an exchange: each keeps a multiprocessor from compute while it waits for the slowest member, and a channel
// to each peer costs some 10 MB of the device. What is exchanged came over the host's link, or will go there, at 50 GB/s;
// so many blocks move more. A user's NCCL_MAX_CTAS counts instead.
constexpr int kMostBlocks = 8;

std::string VersionName(int version) {
  return absl::StrCat("nccl-", version / 10000, ".", version % 10000 / 100, ".", version % 100);
}

// The functions that are used, by their own names.
struct Functions {
  cuda::LoadedLibrary library;
#define EPS_NCCL_FUNCTION(name) decltype(&::name) name = nullptr
  EPS_NCCL_FUNCTION(ncclGetVersion);
  EPS_NCCL_FUNCTION(ncclGetUniqueId);
  EPS_NCCL_FUNCTION(ncclCommInitRankConfig);
  EPS_NCCL_FUNCTION(ncclCommGetAsyncError);
  EPS_NCCL_FUNCTION(ncclCommAbort);
  EPS_NCCL_FUNCTION(ncclGetErrorString);
  EPS_NCCL_FUNCTION(ncclGetLastError);
  EPS_NCCL_FUNCTION(ncclGroupStart);
  EPS_NCCL_FUNCTION(ncclGroupEnd);
  EPS_NCCL_FUNCTION(ncclSend);
  EPS_NCCL_FUNCTION(ncclRecv);
#undef EPS_NCCL_FUNCTION

  absl::Status Find() {
#define EPS_NCCL_FIND(name) EPS_RETURN_IF_ERROR(library.Find(#name, &name))
    EPS_NCCL_FIND(ncclGetVersion);
    EPS_NCCL_FIND(ncclGetUniqueId);
    EPS_NCCL_FIND(ncclCommInitRankConfig);
    EPS_NCCL_FIND(ncclCommGetAsyncError);
    EPS_NCCL_FIND(ncclCommAbort);
    EPS_NCCL_FIND(ncclGetErrorString);
    EPS_NCCL_FIND(ncclGetLastError);
    EPS_NCCL_FIND(ncclGroupStart);
    EPS_NCCL_FIND(ncclGroupEnd);
    EPS_NCCL_FIND(ncclSend);
    EPS_NCCL_FIND(ncclRecv);
#undef EPS_NCCL_FIND
    return absl::OkStatus();
  }
};

class NcclLibrary final : public NcclApi {
 public:
  NcclLibrary(Functions functions, int version) : nccl_(std::move(functions)), version_(version) {}

  std::string version() const override { return VersionName(version_); }

  absl::StatusOr<std::string> NewId() override {
    static_assert(sizeof(ncclUniqueId) <= kMaxIdBytes);
    ncclUniqueId id;
    EPS_RETURN_IF_ERROR(Check(nccl_.ncclGetUniqueId(&id), "ncclGetUniqueId", nullptr));
    return std::string(id.internal, sizeof(id.internal));
  }

  absl::StatusOr<NcclComm> Begin(const std::string& bytes, int rank, int size) override {
    ncclUniqueId id = {};
    if (bytes.size() != sizeof(id.internal)) {
      return absl::InvalidArgumentError(
          absl::StrCat("group: an id of ", bytes.size(), " bytes, NCCL's have ", sizeof(id.internal)));
    }
    std::memcpy(id.internal, bytes.data(), bytes.size());
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.maxCTAs = kMostBlocks;
    ncclComm_t comm = nullptr;
    int device = 0;
    if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess) {
      return absl::InternalError(absl::StrCat("cudaGetDevice: ", cudaGetErrorString(error)));
    }
    device_ = device;
    const ncclResult_t result = nccl_.ncclCommInitRankConfig(&comm, size, id, rank, &config);
    const absl::Status begun = Check(result, "ncclCommInitRankConfig", comm);
    if (begun.ok()) return comm;
    // NCCL may leave one that failed to start, with threads and memory of its own; nobody else would free it.
    if (comm != nullptr) nccl_.ncclCommAbort(comm);
    return begun;
  }

  absl::Status State(NcclComm comm) override {
    ncclResult_t state = ncclSuccess;
    EPS_RETURN_IF_ERROR(Check(nccl_.ncclCommGetAsyncError(At(comm), &state), "ncclCommGetAsyncError", At(comm)));
    if (state == ncclInProgress) return absl::UnavailableError("NCCL is not done yet");
    return Check(state, "a communicator", At(comm));
  }

  absl::Status Transfer(NcclComm comm, const std::vector<NcclTransfer>& transfers, void* stream) override {
    const auto in = static_cast<cudaStream_t>(stream);
    EPS_RETURN_IF_ERROR(Check(nccl_.ncclGroupStart(), "ncclGroupStart", At(comm)));
    absl::Status asked = absl::OkStatus();
    for (const NcclTransfer& transfer : transfers) {
      if (!asked.ok()) break;
      asked = transfer.send != nullptr
                  ? Check(nccl_.ncclSend(transfer.send, transfer.num_bytes, ncclUint8, transfer.peer, At(comm), in),
                          "ncclSend", At(comm))
                  : Check(nccl_.ncclRecv(transfer.receive, transfer.num_bytes, ncclUint8, transfer.peer, At(comm), in),
                          "ncclRecv", At(comm));
    }
    // In any case: a group that is left open would take what other communicators ask for.
    const absl::Status ended = Check(nccl_.ncclGroupEnd(), "ncclGroupEnd", At(comm));
    return asked.ok() ? ended : asked;
  }

  absl::StatusOr<void*> NewScratch(size_t num_bytes, void* stream) override {
    void* scratch = nullptr;
    const cudaError_t error = cudaMallocAsync(&scratch, num_bytes, static_cast<cudaStream_t>(stream));
    if (error == cudaSuccess) return scratch;
    return absl::ResourceExhaustedError(absl::StrCat("cudaMallocAsync: ", cudaGetErrorString(error)));
  }
  absl::Status FreeScratch(void* scratch, void* stream) override {
    cudaError_t error = cudaFreeAsync(scratch, static_cast<cudaStream_t>(stream));
    if (error == cudaSuccess) error = cudaStreamSynchronize(static_cast<cudaStream_t>(stream));
    if (error == cudaSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("the first transfers of a group: ", cudaGetErrorString(error)));
  }

  void Abort(NcclComm comm) override {
    // NCCL makes the caller's device current again when it is done; a thread's that has set none is the first GPU, which would
    // be given a context, of some 500 MB, for that.
    cudaSetDevice(device_);
    nccl_.ncclCommAbort(At(comm));
  }

 private:
  static ncclComm_t At(NcclComm comm) { return static_cast<ncclComm_t>(comm); }
  // What is in progress is no error: State says when it is done.
  absl::Status Check(ncclResult_t result, absl::string_view call, ncclComm_t comm) const {
    if (result == ncclSuccess || result == ncclInProgress) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(call, ": ", nccl_.ncclGetErrorString(result), ": ",
                                            nccl_.ncclGetLastError(comm),
                                            "; NCCL_DEBUG=INFO in the worker's environment says more"));
  }

  const Functions nccl_;
  const int version_;
  std::atomic<int> device_ = 0;  // that is current where communicators are begun; atomic, because others abort them
};

}  // namespace

absl::StatusOr<std::unique_ptr<NcclApi>> LoadNccl() {
  Functions functions;
  EPS_ASSIGN_OR_RETURN(functions.library, cuda::LoadedLibrary::Open("libnccl.so.2"));
  EPS_RETURN_IF_ERROR(functions.Find());
  int version = 0;
  if (functions.ncclGetVersion(&version) != ncclSuccess || version < kLeastVersion) {
    return absl::FailedPreconditionError(absl::StrCat("libnccl.so.2 is ", VersionName(version), ", want ",
                                                      VersionName(kLeastVersion), " or a newer one"));
  }
  return std::make_unique<NcclLibrary>(std::move(functions), version);
}

}  // namespace eps::worker
