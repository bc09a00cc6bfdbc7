#include "gpu_worker/device/cpu/cpu_device.h"

#include <sys/mman.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cpu/cpu_kernels.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/device/cpu/elementwise.h"
#include "gpu_worker/device/cpu/matmul.h"
#include "gpu_worker/device/cpu/thread_pool.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;

// One private mapping, its start at a multiple of a huge page.
class Arena {
 public:
  static absl::StatusOr<Arena> Map(int64_t num_bytes) {
    const int64_t mapped_bytes = num_bytes + kHugePageBytes;
    void* mapping =
        mmap(nullptr, static_cast<size_t>(mapped_bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot map an arena of ", num_bytes, " bytes: ", std::strerror(errno)));
    }
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapping);
    const uintptr_t start = (address + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    // Advice: without huge pages it is only slower.
    madvise(reinterpret_cast<void*>(start), static_cast<size_t>(num_bytes), MADV_HUGEPAGE);
    return Arena(mapping, mapped_bytes, reinterpret_cast<char*>(start));
  }
  Arena(Arena&& other) noexcept
      : mapping_(std::exchange(other.mapping_, nullptr)), mapped_bytes_(other.mapped_bytes_), start_(other.start_) {}
  ~Arena() {
    if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapped_bytes_));
  }

  char* start() const { return start_; }

 private:
  Arena(void* mapping, int64_t mapped_bytes, char* start)
      : mapping_(mapping), mapped_bytes_(mapped_bytes), start_(start) {}

  void* mapping_;
  int64_t mapped_bytes_;
  char* start_;
};

class CpuDevice : public Device {
 public:
  CpuDevice(const CpuDeviceOptions& options, Arena arena)
      : options_(options), arena_(std::move(arena)), pool_(options.threads), kernels_(&compute_, &pool_) {
    properties_.name = "cpu";
    properties_.model = absl::StrCat("cpu ", cpu::VectorTargetName(), " ", cpu::MatMulLibrary());
    properties_.compute_dtype = Dtype::kF32;
    properties_.host_addressable = true;
    properties_.threads = options.threads;
  }
  ~CpuDevice() override {
    // All at once: one may be waiting for another. Then idle: their work uses every other member.
    for (cpu::CpuStream* stream : {&compute_, &in_, &out_}) stream->Close();
    for (cpu::CpuStream* stream : {&compute_, &in_, &out_}) stream->Synchronize().IgnoreError();
  }

  const DeviceProperties& properties() const override { return properties_; }
  int64_t arena_bytes() const override { return options_.arena_bytes; }

  absl::StatusOr<void*> Address(ArenaSpan span) override {
    if (span.offset_bytes % kArenaAlignBytes != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("arena offset ", span.offset_bytes, " is not a multiple of ", kArenaAlignBytes));
    }
    if (span.offset_bytes < 0 || span.num_bytes < 0 || span.offset_bytes > options_.arena_bytes ||
        span.num_bytes > options_.arena_bytes - span.offset_bytes) {
      return absl::OutOfRangeError(absl::StrCat("span of ", span.num_bytes, " bytes at ", span.offset_bytes,
                                                " is beyond the arena's ", options_.arena_bytes, " bytes"));
    }
    int64_t mark = high_water_bytes_.load(std::memory_order_relaxed);
    while (mark < span.end_bytes() && !high_water_bytes_.compare_exchange_weak(mark, span.end_bytes())) {
    }
    return arena_.start() + span.offset_bytes;
  }
  int64_t arena_high_water_bytes() const override { return high_water_bytes_.load(std::memory_order_relaxed); }
  int64_t outside_bytes() const override { return CpuKernelSizes().outside_bytes(options_.threads); }

  Stream& stream(StreamId id) override {
    switch (id) {
      case StreamId::kCompute:
        return compute_;
      case StreamId::kIn:
        return in_;
      case StreamId::kOut:
        return out_;
    }
    return compute_;
  }
  std::unique_ptr<Event> NewEvent() override { return std::make_unique<cpu::CpuEvent>(); }
  Kernels& kernels() override { return kernels_; }
  void Recover() override {
    // Idle first, all of them: work still queued on one could pass its error on to another.
    for (cpu::CpuStream* stream : {&compute_, &in_, &out_}) stream->Synchronize().IgnoreError();
    for (cpu::CpuStream* stream : {&compute_, &in_, &out_}) stream->Recover();
  }

 private:
  // Fixed after construction.
  const CpuDeviceOptions options_;
  DeviceProperties properties_;
  const Arena arena_;

  std::atomic<int64_t> high_water_bytes_{0};  // atomic, because spans are asked for from any thread
  cpu::ThreadPool pool_;
  cpu::CpuStream in_, out_, compute_;
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
  EPS_ASSIGN_OR_RETURN(Arena arena, Arena::Map(options.arena_bytes));
  return std::make_unique<CpuDevice>(options, std::move(arena));
}

}  // namespace eps::worker
