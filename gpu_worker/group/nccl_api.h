#ifndef EPS_GPU_WORKER_GROUP_NCCL_API_H_
#define EPS_GPU_WORKER_GROUP_NCCL_API_H_

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/group/group.h"

namespace eps::worker {

// One ncclSend or ncclRecv, of bytes.
struct NcclTransfer {
  int peer = 0;
  const void* send = nullptr;  // null: it is a receive
  void* receive = nullptr;
  size_t num_bytes = 0;  // never 0
};

// An exchange as NCCL takes it: between two members sends and receives meet in their order, each of its exact length.
// Peers by rank, each one's sends before its receives; what is empty is left out.
std::vector<NcclTransfer> NcclTransfers(const Exchange& exchange);

// A communicator of the API that made it.
using NcclComm = void*;

// What a group needs of NCCL, one method a call or a few: the library's, or in tests the emulator's. Communicators do not
// block: what takes time is asked for, and State says when it is done.
//
// Threads: safe; a communicator from one at a time
class NcclApi {
 public:
  virtual ~NcclApi() = default;
  virtual std::string version() const = 0;  // "nccl-2.28.9"
  // For a communicator; every member begins with the same. At most kMaxIdBytes.
  virtual absl::StatusOr<std::string> NewId() = 0;
  static constexpr size_t kMaxIdBytes = 128;
  // Begins to join the others. With the device current.
  virtual absl::StatusOr<NcclComm> Begin(const std::string& id, int rank, int size) = 0;
  // OK: it is joined, and what was asked for is in its stream · UNAVAILABLE not yet · else why it is broken
  virtual absl::Status State(NcclComm comm) = 0;
  // Asks for all of them at once (ncclGroupStart, ncclGroupEnd), in `stream` as Stream::IssueNative gives it; at least one.
  // They begin when those asked for before have ended, in whatever stream. All ranks ask in one order.
  virtual absl::Status Transfer(NcclComm comm, const std::vector<NcclTransfer>& transfers, void* stream) = 0;
  // Memory of the device, for what comes next in `stream`; freed once that is done, for which it waits.
  virtual absl::StatusOr<void*> NewScratch(size_t num_bytes, void* stream) = 0;
  virtual absl::Status FreeScratch(void* scratch, void* stream) = 0;
  // Ends and frees it. What is under way in its streams ends too, with whatever it brought; and so may what peers wait for
  // of this rank, as if it had come, and their State says nothing of it.
  virtual void Abort(NcclComm comm) = 0;
};

// NVIDIA's library, loaded now.
// Errors: UNIMPLEMENTED this was built without nccl.h · FAILED_PRECONDITION it is not found, or too old
absl::StatusOr<std::unique_ptr<NcclApi>> LoadNccl();

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_NCCL_API_H_
