#include <dlfcn.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/group/nccl_api.h"
#include "gtest/gtest.h"

// In place of the runtime, which finds no GPU here.
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "an error of CUDA"; }
cudaError_t cudaMallocAsync(void**, size_t, cudaStream_t) { return cudaErrorMemoryAllocation; }
cudaError_t cudaFreeAsync(void*, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

namespace eps::worker {
namespace {

TEST(NcclLibraryTest, ACommunicatorThatFailsToStartIsFreed) {
  // Its name within is libnccl.so.2, which whoever asks for that now gets.
  void* fake = dlopen("gpu_worker/group/fake_nccl.so", RTLD_NOW);
  ASSERT_NE(fake, nullptr) << dlerror();
  const auto live_comms = reinterpret_cast<int (*)()>(dlsym(fake, "FakeNcclLiveComms"));
  ASSERT_NE(live_comms, nullptr) << dlerror();
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<NcclApi> nccl, LoadNccl());
  ASSERT_OK_AND_ASSIGN(const std::string id, nccl->NewId());
  EXPECT_THAT(nccl->Begin(id, 1, 3), StatusIs(absl::StatusCode::kInternal, "an error: of the communicator"));
  EXPECT_EQ(live_comms(), 0);
  EXPECT_THAT(nccl->Begin(id, 2, 3), StatusIs(absl::StatusCode::kInternal, "an error: of the process"));
  EXPECT_EQ(live_comms(), 0);
  ASSERT_OK_AND_ASSIGN(const NcclComm joining, nccl->Begin(id, 0, 3));
  EXPECT_EQ(live_comms(), 1);
  nccl->Abort(joining);
  EXPECT_EQ(live_comms(), 0);
}

}  // namespace
}  // namespace eps::worker
