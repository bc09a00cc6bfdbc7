#include "gpu_worker/device/cuda/cuda_device.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/anonymous_memory.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/numeric/philox.h"
#include "gpu_worker/device/arena_spans.h"
#include "gpu_worker/device/cuda/compute_work.h"
#include "gpu_worker/device/cuda/cuda_kernels.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/host_pins.h"
#include "gpu_worker/device/cuda/kernel_choices.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {
namespace {

using Streams = std::array<std::unique_ptr<CudaStream>, kNumStreams>;

class StreamQueue : public ComputeQueue {
 public:
  // All outlive the queue.
  StreamQueue(CudaStream* stream, KernelChoices* choices, bool plain_attention)
      : stream_(*stream), choices_(*choices), plain_attention_(plain_attention) {}

  void Launch(KernelCall call) override {
    EPS_CHECK(call.shape.blocks_x <= kMaxBlocksX && call.shape.blocks_y <= kMaxBlocksY);
    stream_.Launch(std::move(call));
  }
  void MatMul(const MatMulProblem& problem) override {
    if (!choices_.Covers(problem)) return Refuse(KeyOf(LtShapeOf(problem)));
    stream_.Launch(problem);
  }

  const PhiloxKey* DropoutKey(PhiloxKey key) override { return stream_.DropoutKey(key); }

  bool TakesAttention(const SdpaProblem& problem) override {
    if (plain_attention_) return false;
    if (!choices_.Covers(problem)) {
      Refuse(KeyOf(problem));
      return true;  // nothing runs in a stream that failed
    }
    // Where nobody has surveyed: in serving, and in tests. An error stays in the stream.
    if (choices_.TriesLibrary(problem)) stream_.Synchronize().IgnoreError();
    const absl::StatusOr<bool> takes = choices_.ByLibrary(problem);
    if (takes.ok()) return *takes;
    stream_.Issue([status = takes.status()](GpuStream) { return Annotate(status, "attention"); });
    return true;  // nothing runs in a stream that failed
  }
  void Attention(const SdpaProblem& problem, const SdpaArrays& arrays) override {
    stream_.Launch(AttentionCall{.problem = choices_.AsAskedOfLibrary(problem), .arrays = arrays});
  }
  void AttentionBackward(const SdpaProblem& problem, const SdpaArrays& arrays) override {
    stream_.Launch(AttentionCall{.problem = choices_.AsAskedOfLibrary(problem), .arrays = arrays, .is_backward = true});
  }

 private:
  // Its bits would be another worker's by chance alone.
  void Refuse(const std::string& key) {
    stream_.Issue(
        [key](GpuStream) { return absl::InternalError(absl::StrCat(key, ": was not surveyed, and has no choice")); });
  }

  CudaStream& stream_;
  KernelChoices& choices_;
  const bool plain_attention_;
};

void SayNotPinned(int64_t num_bytes, const absl::Status& why) {
  LogWarning("memory_not_pinned", {{"bytes", num_bytes},
                                   {"cost", "copies pass through a buffer of the driver, and wait for each other"},
                                   {"error", why.ToString()}});
}

// The most that the runtime allocates pinned: it makes the pages itself, one after the other, half a second for a GB,
// which many threads make in a tenth of that and the runtime then pins in 0.06 s (an H200).
constexpr int64_t kMostAllocatedByRuntime = int64_t{64} << 20;

// A plan of attention takes half a second of a core and more. Of a text that grows by a token at a time every 128th has
// one.
constexpr int64_t kLengthMultiple = 128;

class CudaDevice : public Device {
 public:
  // `arena`: allocated by `runtime`, which is asked to free it.
  CudaDevice(const CudaDeviceOptions& options, std::shared_ptr<GpuRuntime> runtime, std::shared_ptr<HostPins> pins,
             void* arena, Streams streams)
      : runtime_(std::move(runtime)),
        pins_(std::move(pins)),
        arena_(static_cast<char*>(arena)),
        spans_(options.arena_bytes),
        streams_(std::move(streams)),
        choices_(runtime_, options.plain_attention),
        queue_(streams_[static_cast<size_t>(StreamId::kCompute)].get(), &choices_, options.plain_attention),
        kernels_(options.act, &queue_, options.tf32),
        survey_(options.act, &choices_, options.tf32) {
    properties_.name = options.name;
    properties_.model = runtime_->model();
    properties_.compute_dtype = options.act;
    if (!options.plain_attention) properties_.length_multiple = kLengthMultiple;
  }
  ~CudaDevice() override {
    // All at once: one may be waiting for another. Then idle: nothing that is pinned is copied.
    for (const auto& stream : streams_) stream->Close();
    for (auto& stream : streams_) stream.reset();
    pins_->LetGo();  // memory of NewMappedMemory, which has the pins too, may outlive what others have mapped
    runtime_->Free(arena_);
  }

  const DeviceProperties& properties() const override { return properties_; }
  int64_t arena_bytes() const override { return spans_.arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override {
    EPS_RETURN_IF_ERROR(spans_.Claim(span));
    return arena_ + span.offset_bytes;
  }
  int64_t arena_high_water_bytes() const override { return spans_.high_water_bytes(); }
  int64_t outside_bytes() const override { return runtime_->held_bytes(); }

  absl::StatusOr<HostMemory> NewHostMemory(int64_t num_bytes) override {
    if (num_bytes == 0) return HostMemory();
    if (num_bytes > kMostAllocatedByRuntime) return NewMappedMemory(num_bytes);
    const absl::StatusOr<void*> memory = runtime_->AllocateHost(num_bytes);
    if (!memory.ok()) return NewMappedMemory(num_bytes);
    std::shared_ptr<void> owner(*memory, [runtime = runtime_](void* held) { runtime->FreeHost(held); });
    return HostMemory{absl::MakeSpan(static_cast<std::byte*>(*memory), static_cast<size_t>(num_bytes)),
                      std::move(owner)};
  }
  void ExpectCopiesFrom(absl::Span<const std::byte> host) override { Pin(host, HostAccess::kRead); }
  void ExpectCopiesTo(absl::Span<std::byte> host) override { Pin(host, HostAccess::kReadWrite); }

  Stream& stream(StreamId id) override { return *streams_[static_cast<size_t>(id)]; }
  std::unique_ptr<Event> NewEvent() override {
    return std::make_unique<CudaEvent>(OwnedGpuEvent::New(runtime_, GpuEventUse::kOrder));
  }
  Kernels& kernels() override { return kernels_; }
  Kernels* survey() override { return &survey_; }
  absl::StatusOr<Choices> Choose(ChoiceRule rule) override { return choices_.Choose(rule); }
  absl::Status Follow(const Choices& choices) override { return choices_.Follow(choices); }
  void Recover() override {
    // Idle first, all of them: work still queued on one could pass its error on to another.
    for (const auto& stream : streams_) stream->Synchronize().IgnoreError();
    for (const auto& stream : streams_) stream->Recover();
  }

 private:
  void Pin(absl::Span<const std::byte> host, HostAccess access) {
    const absl::Status status = pins_->Pin(host, access);
    if (!status.ok()) SayNotPinned(pins_->loose_bytes(host), status);
  }

  // Pinned in pieces, as many as can be. A container may limit what is locked, and a slow run is better than none.
  absl::StatusOr<HostMemory> NewMappedMemory(int64_t num_bytes) {
    EPS_ASSIGN_OR_RETURN(AnonymousMemory mapped, AnonymousMemory::Map(num_bytes, "host memory for copies"));
    mapped.Populate();
    const auto memory = std::make_shared<AnonymousMemory>(std::move(mapped));
    const absl::Span<std::byte> bytes = absl::MakeSpan(memory->base(), static_cast<size_t>(num_bytes));
    std::shared_ptr<void> owner(memory->base(), [pins = pins_, memory, bytes](void*) { pins->Unpin(bytes); });
    Pin(bytes, HostAccess::kReadWrite);
    return HostMemory{bytes, std::move(owner)};
  }

  const std::shared_ptr<GpuRuntime> runtime_;
  const std::shared_ptr<HostPins> pins_;
  char* const arena_;
  DeviceProperties properties_;  // fixed after construction
  ArenaSpans spans_;
  Streams streams_;
  KernelChoices choices_;
  StreamQueue queue_;
  CudaKernels kernels_;
  CudaKernels survey_;  // whose queue is choices_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> NewCudaDevice(const CudaDeviceOptions& options,
                                                      std::unique_ptr<GpuRuntime> owned) {
  const std::shared_ptr<GpuRuntime> runtime = std::move(owned);
  if (options.arena_bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("arena_bytes: ", options.arena_bytes, " is not positive"));
  }
  if (options.plain_attention) LogInfo("attention_by_plain_kernel", {{"why", "precision.plain_attention"}});
  const auto pins = std::make_shared<HostPins>(runtime);
  Streams streams;
  EPS_ASSIGN_OR_RETURN(streams[static_cast<size_t>(StreamId::kCompute)],
                       CudaStream::NewWithKeys(runtime, pins, "compute stream", options.graphs));
  for (const auto& [id, name] : {std::pair(StreamId::kIn, "in-stream"), {StreamId::kOut, "out-stream"}}) {
    EPS_ASSIGN_OR_RETURN(streams[static_cast<size_t>(id)],
                         CudaStream::New(runtime, pins, name, options.graphs, GpuStreamUse::kCopies));
  }
  EPS_ASSIGN_OR_RETURN(void* arena, runtime->Allocate(options.arena_bytes));
  // What contexts and the code of libraries take shows here alone.
  if (const absl::StatusOr<GpuMemory> memory = runtime->Memory(); memory.ok()) {
    LogInfo("gpu_memory", {{"device", options.name},
                           {"arena_bytes", options.arena_bytes},
                           {"free_bytes", memory->free_bytes},
                           {"total_bytes", memory->total_bytes}});
  }
  return std::make_unique<CudaDevice>(options, runtime, pins, arena, std::move(streams));
}

}  // namespace eps::worker::cuda
