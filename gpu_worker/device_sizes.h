#ifndef EPS_GPU_WORKER_DEVICE_SIZES_H_
#define EPS_GPU_WORKER_DEVICE_SIZES_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// What a plan must know of a device, by its name alone: "cpu", "cuda", "cuda:I". Nothing of the device is started, nor
// need this build have it.
// Errors: INVALID_ARGUMENT no such name
absl::StatusOr<KernelSizes> FindKernelSizes(const std::string& device, Dtype wire);

// What a run asks of libraries on a worker with so many threads.
LibraryUse LibraryUseOf(const RunConfig& run, int threads);

// The I of "cuda:I", 0 for "cuda". Errors: INVALID_ARGUMENT another name
absl::StatusOr<int> GpuIndex(absl::string_view device);

// The cap of a worker whose user named none, on a GPU with so much memory free of so much, which `sharers` workers take for
// themselves: nine tenths of its share, or of what is left. The last tenth is for contexts, and what libraries load later.
int64_t DefaultGpuMemoryBytes(int64_t free_bytes, int64_t total_bytes, int sharers);

// Whether the arena lies in the host's memory.
inline bool IsOnHost(const std::string& device) { return device == "cpu"; }

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_SIZES_H_
