#include "gpu_worker/device_registry.h"

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/memory_room.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/nvidia_device.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/group/shared_memory_group.h"

namespace eps::worker {
namespace {

// Half of the room of this host and of the control groups around it, as for an only worker. Who starts several
// (eps train) divides it, and names each worker's part.
absl::StatusOr<int64_t> DefaultHostMemoryBytes() {
  const int64_t num_bytes = DefaultDeviceMemoryBytes(FindMemoryRoom(), /*workers=*/1);
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

// Of what is free, the tenth that is left is for what the libraries load later.
int64_t DefaultGpuMemoryBytes(int64_t free_bytes) { return free_bytes / 10 * 9; }

DeviceBackend CudaBackend(int index) {
  const std::string name = absl::StrCat("cuda:", index);
  return {.kernels = [](Dtype wire) { return cuda::CudaKernelSizes(wire); },
          .create =
              [name, index](const DeviceOptions& options) {
                return cuda::NewNvidiaDevice(index,
                                             {.name = name, .arena_bytes = options.arena_bytes, .act = options.wire});
              },
          .probe = [name, index](int) -> absl::StatusOr<DeviceProperties> {
            EPS_ASSIGN_OR_RETURN(const cuda::GpuInfo gpu, cuda::ProbeNvidiaGpu(index));
            return DeviceProperties{.name = name, .model = gpu.model};
          },
          .default_memory_bytes = [index]() -> absl::StatusOr<int64_t> {
            EPS_ASSIGN_OR_RETURN(const cuda::GpuInfo gpu, cuda::ProbeNvidiaGpu(index));
            return DefaultGpuMemoryBytes(gpu.free_bytes);
          },
          .group_maker = nullptr};
}

}  // namespace

absl::StatusOr<DeviceBackend> FindDevice(const std::string& name) {
  if (name == "cpu") return CpuBackend();
  EPS_ASSIGN_OR_RETURN(const int gpu, GpuIndex(name));
  EPS_RETURN_IF_ERROR_WITH(cuda::CheckCudaIsBuilt(), absl::StrCat("--device ", name));
  return CudaBackend(gpu);
}

}  // namespace eps::worker
