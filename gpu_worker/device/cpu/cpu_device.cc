#include "gpu_worker/device/cpu/cpu_device.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/arena_spans.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cpu/cpu_kernels.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/device/cpu/elementwise.h"
#include "gpu_worker/device/cpu/host_arena.h"
#include "gpu_worker/device/cpu/matmul.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {
namespace {

constexpr int kMaxThreads = 1024;

class CpuDevice : public Device {
 public:
  CpuDevice(const CpuDeviceOptions& options, cpu::HostArena arena, cpu::HostArena scratch)
      : threads_(options.threads),
        arena_(std::move(arena)),
        spans_(options.arena_bytes),
        pool_(options.threads, std::move(scratch)),
        kernels_(&streams_.at(StreamId::kCompute), &pool_) {
    properties_.name = "cpu";
    properties_.model = absl::StrCat("cpu ", cpu::VectorTargetName(), " ", cpu::MatMulLibrary());
    properties_.compute_dtype = Dtype::kF32;
    properties_.host_addressable = true;
    properties_.threads = options.threads;
  }
  ~CpuDevice() override { streams_.Close(); }

  const DeviceProperties& properties() const override { return properties_; }
  int64_t arena_bytes() const override { return spans_.arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override {
    EPS_RETURN_IF_ERROR(spans_.Claim(span));
    return arena_.start() + span.offset_bytes;
  }
  int64_t arena_high_water_bytes() const override { return spans_.high_water_bytes(); }
  int64_t outside_bytes() const override { return CpuKernelSizes().outside_bytes({.threads = threads_}); }

  Stream& stream(StreamId id) override { return streams_.at(id); }
  std::unique_ptr<Event> NewEvent() override { return std::make_unique<cpu::CpuEvent>(); }
  Kernels& kernels() override { return kernels_; }
  void Recover() override { streams_.Recover(); }

 private:
  // Fixed after construction.
  const int threads_;
  DeviceProperties properties_;
  const cpu::HostArena arena_;

  ArenaSpans spans_;
  cpu::ThreadPool pool_;
  cpu::CpuStreams streams_;
  cpu::CpuKernels kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> NewCpuDevice(CpuDeviceOptions options) {
  if (options.threads < 1 || options.threads > kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat("threads: ", options.threads, " is not in [1, ", kMaxThreads, "]"));
  }
  if (options.arena_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("arena_bytes: ", options.arena_bytes, " is negative"));
  }
  if (!cpu::VectorTargetSupported()) {
    return absl::FailedPreconditionError(
        "this processor has no fused multiply-add vector instructions (AVX2 with FMA, or AVX-512, "
        "on x86), "
        "which the cpu device needs: without them results would have other bits");
  }
  EPS_ASSIGN_OR_RETURN(cpu::HostArena arena, cpu::HostArena::Map(options.arena_bytes));
  EPS_ASSIGN_OR_RETURN(cpu::HostArena scratch, cpu::HostArena::Map(cpu::TileScratchBytes(options.threads)));
  return std::make_unique<CpuDevice>(options, std::move(arena), std::move(scratch));
}

}  // namespace eps::worker
