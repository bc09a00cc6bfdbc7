#include "gpu_worker/device/cuda/emulator/emulated_device.h"

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/arena_spans.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/device/cpu/host_arena.h"
#include "gpu_worker/device/cuda/cuda_kernels.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/emulator/plain_matmul.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_library.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {
namespace {

// Kernels and matrix products on the thread of one stream.
class EmulatedQueue : public KernelQueue, public MatMulLibrary {
 public:
  EmulatedQueue(cpu::CpuStream* stream, GridOrder order) : stream_(*stream), grids_(order) {}

  void Launch(const KernelCall& call) override {
    stream_.Launch([this, shape = call.shape, body = call.body] { grids_.Run(shape, body); });
  }
  void MatMul(const MatMulProblem& problem) override {
    stream_.Launch([problem] { PlainMatMul(problem); });
  }

 private:
  cpu::CpuStream& stream_;
  GridRunner grids_;
};

class EmulatedDevice : public Device {
 public:
  EmulatedDevice(const EmulatedDeviceOptions& options, cpu::HostArena arena)
      : arena_(std::move(arena)),
        spans_(options.arena_bytes),
        queue_(&streams_.at(StreamId::kCompute), options.order),
        kernels_(options.act, &queue_, &queue_) {
    properties_.name = "cuda:emulated";
    properties_.model = "cuda emulated";
    properties_.compute_dtype = options.act;
  }
  ~EmulatedDevice() override { streams_.Close(); }

  const DeviceProperties& properties() const override { return properties_; }
  int64_t arena_bytes() const override { return spans_.arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override {
    EPS_RETURN_IF_ERROR(spans_.Claim(span));
    return arena_.start() + span.offset_bytes;
  }
  int64_t arena_high_water_bytes() const override { return spans_.high_water_bytes(); }
  int64_t outside_bytes() const override { return 0; }

  Stream& stream(StreamId id) override { return streams_.at(id); }
  std::unique_ptr<Event> NewEvent() override { return std::make_unique<cpu::CpuEvent>(); }
  Kernels& kernels() override { return kernels_; }
  void Recover() override { streams_.Recover(); }

 private:
  DeviceProperties properties_;  // fixed after construction
  const cpu::HostArena arena_;
  ArenaSpans spans_;
  cpu::CpuStreams streams_;
  EmulatedQueue queue_;
  CudaKernels kernels_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> NewEmulatedCudaDevice(EmulatedDeviceOptions options) {
  EPS_ASSIGN_OR_RETURN(cpu::HostArena arena, cpu::HostArena::Map(options.arena_bytes));
  return std::make_unique<EmulatedDevice>(options, std::move(arena));
}

}  // namespace eps::worker::cuda
