// A libnccl.so.2 for a test of who calls it: communicators that never join, and are counted.

#include <atomic>

#include "nccl.h"

struct ncclComm {};

namespace {

std::atomic<int> live_comms = 0;

}  // namespace

extern "C" {

// Communicators that were made and not aborted; for the test.
int FakeNcclLiveComms() { return live_comms; }

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}

// Rank 0 joins, and the others fail: 1 with a communicator, 2 without one.
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int, ncclUniqueId, int rank, ncclConfig_t*) {
  *comm = rank == 2 ? nullptr : new ncclComm;
  if (*comm != nullptr) ++live_comms;
  return rank == 0 ? ncclInProgress : ncclSystemError;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete comm;
  --live_comms;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* state) {
  *state = ncclInProgress;
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t) { return "an error"; }
// As NCCL's: of the process, and of a communicator where there is one.
const char* ncclGetLastError(ncclComm_t comm) { return comm == nullptr ? "of the process" : "of the communicator"; }

ncclResult_t ncclGroupStart() { return ncclSuccess; }
ncclResult_t ncclGroupEnd() { return ncclSuccess; }
ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclSuccess; }
ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return ncclSuccess; }

}  // extern "C"
