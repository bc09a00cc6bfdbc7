#include "gpu_worker/device_registry.h"

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/memory_room.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/nvidia_device.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/group/nccl_api.h"
#include "gpu_worker/group/nccl_group.h"
#include "gpu_worker/group/shared_memory_group.h"

namespace eps::worker {
namespace {

// Half of the room of this host and of the control groups around it, divided.
absl::StatusOr<int64_t> DefaultHostMemoryBytes(int sharers) {
  const int64_t num_bytes = DefaultDeviceMemoryBytes(FindMemoryRoom(), sharers);
  if (num_bytes > 0) return num_bytes;
  return absl::InternalError("/proc/meminfo does not say how much memory there is: give --device-memory");
}

DeviceBackend CpuBackend() {
  return {.kernels = [](Dtype) { return CpuKernelSizes(); },
          .create =
              [](const DeviceOptions& options) {
                return NewCpuDevice({.arena_bytes = options.arena_bytes, .threads = options.threads});
              },
          .probe = [](int threads) -> absl::StatusOr<DeviceProperties> {
            EPS_ASSIGN_OR_RETURN(const auto device, NewCpuDevice({.arena_bytes = 0, .threads = threads}));
            return device->properties();
          },
          .default_memory_bytes = &DefaultHostMemoryBytes,
          .group_maker = &NewSharedMemoryGroupMaker};
}

DeviceBackend CudaBackend(int index) {
  const std::string name = absl::StrCat("cuda:", index);
  return {.pins_weights = true,
          .kernels = [](Dtype wire) { return cuda::CudaKernelSizes(wire); },
          .create =
              [name, index](const DeviceOptions& options) {
                return cuda::NewNvidiaDevice(index, {.name = name,
                                                     .arena_bytes = options.arena_bytes,
                                                     .act = options.wire,
                                                     .tf32 = options.tf32,
                                                     .plain_attention = options.plain_attention,
                                                     .graphs = options.graphs});
              },
          .probe = [name, index](int) -> absl::StatusOr<DeviceProperties> {
            EPS_ASSIGN_OR_RETURN(const cuda::GpuInfo gpu, cuda::ProbeNvidiaGpu(index));
            return DeviceProperties{.name = name, .model = gpu.model};
          },
          .default_memory_bytes = [index](int sharers) -> absl::StatusOr<int64_t> {
            EPS_ASSIGN_OR_RETURN(const cuda::GpuInfo gpu, cuda::ProbeNvidiaGpu(index));
            return DefaultGpuMemoryBytes(gpu.memory.free_bytes, gpu.memory.total_bytes, sharers);
          },
          .group_maker = []() -> std::unique_ptr<GroupMaker> {
            absl::StatusOr<std::unique_ptr<NcclApi>> nccl = LoadNccl();
            if (nccl.ok()) return NewNcclGroupMaker(*std::move(nccl));
            LogWarning("no_groups", {{"why", nccl.status().message()}});
            return nullptr;
          }};
}

}  // namespace

DevicePlace FindPlace(const std::string& name, int turn, int workers) {
  if (name != "cuda") return {.device = name, .sharers = workers};
  const absl::StatusOr<int> gpus = cuda::CountGpus();
  if (!gpus.ok() || *gpus == 0) return {.device = name, .sharers = workers};
  const int gpu = turn % *gpus;
  return {.device = absl::StrCat("cuda:", gpu), .sharers = (workers - gpu + *gpus - 1) / *gpus};
}

absl::StatusOr<DeviceBackend> FindDevice(const std::string& name) {
  if (name == "cpu") return CpuBackend();
  EPS_ASSIGN_OR_RETURN(const int gpu, GpuIndex(name));
  EPS_RETURN_IF_ERROR_WITH(cuda::CheckCudaIsBuilt(), absl::StrCat("--device ", name));
  return CudaBackend(gpu);
}

}  // namespace eps::worker
