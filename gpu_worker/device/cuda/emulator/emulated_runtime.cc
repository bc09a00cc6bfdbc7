#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cpu/cpu_stream.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/emulator/plain_matmul.h"
#include "gpu_worker/device/cuda/emulator/sdpa_interpreter.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_graph.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/device.h"

namespace eps::worker::cuda {
namespace {

constexpr size_t kAllocationAlignBytes = 256;  // as cudaMalloc's
constexpr size_t kPageBytes = 4096;
constexpr int kSmMajor = 9;
constexpr int64_t kNodesOfACall = 2;  // of a graph: a library's call may be several kernels

using Works = std::vector<std::function<void()>>;

struct EmulatedStream {
  explicit EmulatedStream(GridOrder order) : grids(order) {}
  ~EmulatedStream() {
    thread.Launch([this] { grids.reset(); });
    thread.Synchronize().IgnoreError();
  }

  // Runs in its turn, or becomes part of the graph that is being captured.
  void LaunchOrCapture(std::function<void()> work) {
    if (captured.has_value()) {
      captured->push_back(std::move(work));
    } else {
      thread.Launch(std::move(work));
    }
  }

  std::optional<GridRunner> grids;  // of the thread below, from beginning to end
  std::optional<Works> captured;    // so far
  cpu::CpuStream thread;
};

class EmulatedEvent {
 public:
  explicit EmulatedEvent(GpuEventUse use) : use_(use) {}

  // When a record is enqueued, and when it is reached.
  int64_t Enqueue() {
    MutexLock lock(mu_);
    return ++enqueued_;
  }
  void Reach(int64_t record) {
    MutexLock lock(mu_);
    reached_ = record;
    time_ = std::chrono::steady_clock::now();
    cv_.NotifyAll();
  }
  int64_t last_enqueued() {
    MutexLock lock(mu_);
    return enqueued_;
  }
  bool is_reached() {
    MutexLock lock(mu_);
    return reached_ == enqueued_;
  }
  void AwaitReached(int64_t record) {
    MutexLock lock(mu_);
    while (reached_ < record) cv_.Wait(mu_);
  }
  // Errors: FAILED_PRECONDITION the last record is not reached, or there was none · INVALID_ARGUMENT not for timing
  absl::StatusOr<std::chrono::steady_clock::time_point> time() {
    if (use_ != GpuEventUse::kTiming) return absl::InvalidArgumentError("an event without a time");
    MutexLock lock(mu_);
    if (enqueued_ == 0 || reached_ < enqueued_) return absl::FailedPreconditionError("an event that is not reached");
    return time_;
  }

 private:
  const GpuEventUse use_;
  Mutex mu_;
  CondVar cv_;
  int64_t enqueued_ ABSL_GUARDED_BY(mu_) = 0, reached_ ABSL_GUARDED_BY(mu_) = 0;
  std::chrono::steady_clock::time_point time_ ABSL_GUARDED_BY(mu_);
};

// False for pages of which some may only be read.
bool IsMappedWritable(absl::Span<const std::byte> pages) {
  const auto begin = reinterpret_cast<uintptr_t>(pages.data()), end = begin + pages.size();
  std::ifstream maps("/proc/self/maps");
  uintptr_t first = 0, last = 0;
  char dash = 0;
  std::string access, rest;
  while (maps >> std::hex >> first >> dash >> last >> access && std::getline(maps, rest)) {
    if (first < end && last > begin && access[1] != 'w') return false;
  }
  return true;
}

class EmulatedRuntime : public GpuRuntime {
 public:
  EmulatedRuntime(GridOrder order, EmulatedTraits traits) : order_(order), traits_(std::move(traits)) {}
  ~EmulatedRuntime() override {
    MutexLock lock(mu_);
    EPS_CHECK(pinned_.empty() && allocated_.empty() && graphs_ == 0);
  }

  std::string model() const override {
    return traits_.has_fused_attention ? "cuda emulated, fused attention" : "cuda emulated";
  }
  int64_t held_bytes() const override { return 0; }
  absl::StatusOr<GpuMemory> Memory() override {
    return GpuMemory{.free_bytes = int64_t{1} << 30, .total_bytes = int64_t{1} << 30};
  }

  absl::StatusOr<void*> Allocate(int64_t num_bytes) override {
    const size_t rounded = (static_cast<size_t>(num_bytes) + kAllocationAlignBytes - 1) / kAllocationAlignBytes;
    void* memory = std::aligned_alloc(kAllocationAlignBytes, rounded * kAllocationAlignBytes);
    if (memory == nullptr) return absl::ResourceExhaustedError(absl::StrCat("no ", num_bytes, " bytes"));
    return memory;
  }
  void Free(void* memory) override { std::free(memory); }
  absl::StatusOr<void*> AllocateHost(int64_t num_bytes) override {
    MutexLock lock(mu_);
    if (num_bytes > traits_.most_pinned_bytes - pinned_bytes_) return NoMorePinned();
    EPS_ASSIGN_OR_RETURN(void* memory, Allocate(num_bytes));
    allocated_[memory] = num_bytes;
    CountPinned(num_bytes);
    return memory;
  }
  void FreeHost(void* memory) override {
    MutexLock lock(mu_);
    const auto found = allocated_.find(memory);
    EPS_CHECK(found != allocated_.end());
    CountPinned(-found->second);
    allocated_.erase(found);
    std::free(memory);
  }

  absl::Status RegisterHost(absl::Span<const std::byte> pages, HostAccess access) override {
    MutexLock lock(mu_);
    EPS_CHECK(!pages.empty() && reinterpret_cast<uintptr_t>(pages.data()) % kPageBytes == 0 &&
              pages.size() % kPageBytes == 0);
    const auto next = pinned_.lower_bound(pages.data());
    EPS_CHECK(next == pinned_.end() || next->first >= pages.data() + pages.size());
    EPS_CHECK(next == pinned_.begin() || std::prev(next)->first + std::prev(next)->second.num_bytes <= pages.data());
    if (!IsMappedWritable(pages))
      return absl::InternalError("memory that is mapped for reading alone cannot be pinned");
    if (static_cast<int64_t>(pages.size()) > traits_.most_pinned_bytes - pinned_bytes_) {
      return NoMorePinned();
    }
    pinned_[pages.data()] = {.num_bytes = pages.size(), .access = access};
    CountPinned(static_cast<int64_t>(pages.size()));
    return absl::OkStatus();
  }
  void UnregisterHost(absl::Span<const std::byte> pages) override {
    MutexLock lock(mu_);
    const auto found = pinned_.find(pages.data());
    EPS_CHECK(found != pinned_.end() && found->second.num_bytes == pages.size());
    EPS_CHECK(msync(const_cast<std::byte*>(pages.data()), pages.size(), MS_ASYNC) == 0);  // else: not mapped any more
    pinned_.erase(found);
    CountPinned(-static_cast<int64_t>(pages.size()));
  }

  absl::StatusOr<GpuStream> NewStream(GpuStreamUse) override { return GpuStream{new EmulatedStream(order_)}; }
  void DestroyStream(GpuStream stream) override { delete &At(stream); }
  absl::StatusOr<GpuEvent> NewEvent(GpuEventUse use) override { return GpuEvent{new EmulatedEvent(use)}; }
  void DestroyEvent(GpuEvent event) override { delete &At(event); }

  absl::Status CopyIn(GpuStream stream, void* device, absl::Span<const std::byte> host) override {
    EPS_RETURN_IF_ERROR(CheckCall(stream, "CopyIn"));
    EPS_RETURN_IF_ERROR(CheckCopy(host, HostAccess::kRead));
    At(stream).thread.CopyIn(device, host);
    return absl::OkStatus();
  }
  absl::Status CopyOut(GpuStream stream, absl::Span<std::byte> host, const void* device) override {
    EPS_RETURN_IF_ERROR(CheckCall(stream, "CopyOut"));
    EPS_RETURN_IF_ERROR(CheckCopy(host, HostAccess::kReadWrite));
    At(stream).thread.CopyOut(host, device);
    return absl::OkStatus();
  }
  absl::Status Launch(GpuStream stream, const KernelCall& call) override {
    EPS_RETURN_IF_ERROR(CheckFault("Launch"));
    EmulatedStream* on = &At(stream);
    if (on->captured.has_value()) EPS_RETURN_IF_ERROR(traits_.captured_call_error);
    if (launches_.fetch_add(1) == traits_.good_launches) {
      on->LaunchOrCapture([this] { failed_ = true; });
      return absl::OkStatus();
    }
    on->LaunchOrCapture([on, shape = call.shape, body = call.body] { on->grids->Run(shape, body); });
    return absl::OkStatus();
  }
  absl::Status MatMul(GpuStream stream, const MatMulProblem& problem) override {
    EPS_RETURN_IF_ERROR(CheckFault("MatMul"));
    if (At(stream).captured.has_value()) EPS_RETURN_IF_ERROR(traits_.captured_call_error);
    const EmulatedAlgorithm algorithm = AlgorithmOf(problem);
    if (algorithm.is_refused) return absl::InternalError(absl::StrCat("the emulator refuses \"", algorithm.name, "\""));
    At(stream).LaunchOrCapture([problem, algorithm] {
      std::this_thread::sleep_for(algorithm.takes);
      PlainMatMul(problem, algorithm.order);
    });
    return absl::OkStatus();
  }
  absl::StatusOr<std::vector<std::string>> MatMulAlgorithms(const MatMulProblem&, int most) override {
    std::vector<std::string> names;
    for (const EmulatedAlgorithm& algorithm : traits_.algorithms) {
      if (static_cast<int>(names.size()) < most) names.push_back(algorithm.name);
    }
    return names;
  }
  absl::Status UseMatMulAlgorithm(const MatMulProblem& problem, const std::string& name) override {
    for (const EmulatedAlgorithm& algorithm : traits_.algorithms) {
      if (algorithm.name != name) continue;
      MutexLock lock(mu_);
      used_.insert_or_assign(LtShapeOf(problem), algorithm);
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(absl::StrCat("the emulator has no algorithm \"", name, "\""));
  }

  absl::StatusOr<bool> TakesAttention(const SdpaProblem& problem) override {
    EPS_RETURN_IF_ERROR(traits_.attention_error);
    return traits_.has_fused_attention && CheckFusedAttention(problem, kSmMajor).ok() &&
           FirstEngine(problem.passed_forward).has_value() && FirstEngine(problem.passed_backward).has_value();
  }
  absl::StatusOr<std::string> AttentionAlgorithm(const SdpaProblem& problem) override {
    EPS_ASSIGN_OR_RETURN(const bool takes, TakesAttention(problem));
    if (!takes) return std::string(kPlainAttention);
    const int64_t engine = *FirstEngine(problem.passed_backward);
    return absl::StrCat(traits_.attention_algorithm, engine == 0 ? "" : absl::StrCat(" ", engine));
  }
  absl::StatusOr<SdpaEngines> AttentionEngines(const SdpaProblem& problem) override {
    return SdpaEngines{.forward = *FirstEngine(problem.passed_forward),
                       .backward = *FirstEngine(problem.passed_backward)};
  }
  absl::Status Attention(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) override {
    return RunAttention(stream, problem, &SdpaForwardGraph, arrays);
  }
  absl::Status AttentionBackward(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) override {
    return RunAttention(stream, problem, &SdpaBackwardGraph, arrays);
  }

  absl::Status BeginCapture(GpuStream stream) override {
    EPS_RETURN_IF_ERROR(CheckCall(stream, "BeginCapture"));
    At(stream).captured.emplace();
    return absl::OkStatus();
  }
  absl::StatusOr<GpuGraph> EndCapture(GpuStream stream) override {
    EPS_CHECK(At(stream).captured.has_value());
    auto captured = std::make_unique<Works>(*std::exchange(At(stream).captured, std::nullopt));
    EPS_RETURN_IF_ERROR(CheckFault("EndCapture"));
    EPS_RETURN_IF_ERROR(traits_.capture_error);
    ++graphs_;
    const int64_t nodes = kNodesOfACall * static_cast<int64_t>(captured->size());
    return GpuGraph{.handle = captured.release(), .nodes = nodes};
  }
  absl::Status LaunchGraph(GpuStream stream, GpuGraph graph) override {
    EPS_RETURN_IF_ERROR(CheckCall(stream, "LaunchGraph"));
    if (traits_.graphs_launched != nullptr) traits_.graphs_launched->fetch_add(1);
    At(stream).thread.Launch([works = static_cast<const Works*>(graph.handle)] {
      for (const auto& work : *works) work();
    });
    return absl::OkStatus();
  }
  void DestroyGraph(GpuGraph graph) override {
    --graphs_;
    delete static_cast<Works*>(graph.handle);
  }

  absl::Status Record(GpuStream stream, GpuEvent event) override {
    EPS_RETURN_IF_ERROR(CheckCall(stream, "Record"));
    EmulatedEvent* recorded = &At(event);
    At(stream).thread.Launch([recorded, record = recorded->Enqueue()] { recorded->Reach(record); });
    return absl::OkStatus();
  }
  absl::Status Wait(GpuStream stream, GpuEvent event) override {
    EPS_RETURN_IF_ERROR(CheckCall(stream, "Wait"));
    EmulatedEvent* awaited = &At(event);
    At(stream).thread.Launch([awaited, record = awaited->last_enqueued()] { awaited->AwaitReached(record); });
    return absl::OkStatus();
  }
  absl::Status Synchronize(GpuStream stream) override {
    EPS_RETURN_IF_ERROR(At(stream).thread.Synchronize());
    return CheckFault("Synchronize");
  }
  absl::Status Await(GpuEvent event) override {
    At(event).AwaitReached(At(event).last_enqueued());
    return CheckFault("Await");
  }
  absl::StatusOr<bool> IsReached(GpuEvent event) override {
    EPS_RETURN_IF_ERROR(CheckFault("IsReached"));
    return traits_.is_reached.has_value() ? *traits_.is_reached : At(event).is_reached();
  }
  absl::StatusOr<double> SecondsBetween(GpuEvent start, GpuEvent end) override {
    EPS_ASSIGN_OR_RETURN(const auto from, At(start).time());
    EPS_ASSIGN_OR_RETURN(const auto to, At(end).time());
    return std::chrono::duration<double>(to - from).count();
  }

 private:
  static EmulatedStream& At(GpuStream stream) { return *static_cast<EmulatedStream*>(stream.handle); }
  // Engines are 0, 1, ... None: all are passed over.
  std::optional<int64_t> FirstEngine(const std::vector<int64_t>& passed_over) const {
    for (int64_t engine = 0; engine < traits_.attention_engines; ++engine) {
      if (std::find(passed_over.begin(), passed_over.end(), engine) == passed_over.end()) return engine;
    }
    return std::nullopt;
  }

  absl::Status RunAttention(GpuStream stream, const SdpaProblem& problem,
                            absl::StatusOr<SdpaGraph> (*make_graph)(const SdpaProblem&), const SdpaArrays& arrays) {
    SdpaProblem like = problem;
    if (traits_.attention_by_parts) {
      like = CutSmaller(like, like.B, 1, 1);         // a sequence
      like = CutSmaller(like, like.kv_heads, 1, 1);  // a head
    }
    EPS_ASSIGN_OR_RETURN(SdpaGraph graph, make_graph(like));
    for (SdpaTensor& tensor : graph.tensors) {
      const bool errs =
          traits_.errs_in_dropout && *FirstEngine(problem.passed_backward) == 0 && tensor.uid == kUidOneDelta;
      if (errs) tensor.value = static_cast<float>(1 / (1 - problem.dropout));
    }
    // Room for any type.
    const auto room_for = [](int64_t elems) { return std::make_shared<std::vector<float>>(elems); };
    const int64_t of_a_head = like.B * like.T * like.T;
    for (const SdpaPart& part : PartsOf(problem, like, arrays)) {
      const auto bias = room_for(problem.documents ? of_a_head : 0);
      const auto kept = room_for(problem.dropout > 0 ? like.H * of_a_head : 0);
      if (problem.documents) {
        const KernelCall call = DocumentBias(problem.act, like.B, like.T, part.arrays.documents, bias->data());
        EPS_RETURN_IF_ERROR(Launch(stream, call));
      }
      if (problem.dropout > 0) {
        const KernelCall call = DropoutMask(problem.act, like.H * of_a_head, part.arrays.dropout, kept->data());
        EPS_RETURN_IF_ERROR(Launch(stream, call));
      }
      EPS_ASSIGN_OR_RETURN(std::vector<SdpaBinding> bindings, BindSdpa(problem, graph, part.arrays, part.first_kv_head,
                                                                       {.bias = bias->data(), .kept = kept->data()}));
      At(stream).LaunchOrCapture(
          [graph, bindings = std::move(bindings), bias, kept] { RunSdpaGraph(graph, bindings); });
    }
    return absl::OkStatus();
  }
  static EmulatedEvent& At(GpuEvent event) { return *static_cast<EmulatedEvent*>(event.handle); }
  EmulatedAlgorithm AlgorithmOf(const MatMulProblem& problem) {
    MutexLock lock(mu_);
    const auto used = used_.find(LtShapeOf(problem));
    return used == used_.end() ? traits_.algorithms.front() : used->second;
  }

  void CountPinned(int64_t num_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    pinned_bytes_ += num_bytes;
    if (traits_.pinned_bytes != nullptr) *traits_.pinned_bytes += num_bytes;
  }
  static absl::Status NoMorePinned() { return absl::ResourceExhaustedError("no more memory can be pinned"); }
  absl::Status CheckFault(absl::string_view call) const {
    return failed_ ? FoundBy(call, "an emulated fault") : absl::OkStatus();
  }
  // Of what no graph can hold.
  absl::Status CheckCall(GpuStream stream, absl::string_view call) const {
    if (At(stream).captured.has_value())
      return absl::InternalError(absl::StrCat(call, ": the stream is being captured"));
    return CheckFault(call);
  }
  absl::Status CheckCopy(absl::Span<const std::byte> host, HostAccess access) {
    MutexLock lock(mu_);
    const std::byte* const end = host.data() + host.size();
    auto found = pinned_.upper_bound(host.data());
    if (found != pinned_.begin() && std::prev(found)->first + std::prev(found)->second.num_bytes > host.data()) --found;
    if (found == pinned_.end() || found->first >= end) return absl::OkStatus();  // all of it pageable
    if (found->first > host.data() || found->first + found->second.num_bytes < end) {
      return absl::InvalidArgumentError("a copy of host memory that is registered in part, or in two calls");
    }
    if (access == HostAccess::kReadWrite && found->second.access != access) {
      return absl::InvalidArgumentError("a copy to host memory that is registered for reading");
    }
    return absl::OkStatus();
  }

  struct Pinned {
    size_t num_bytes = 0;
    HostAccess access = HostAccess::kRead;
  };

  const GridOrder order_;
  const EmulatedTraits traits_;
  std::atomic<int64_t> launches_{0};  // atomic, as are the next: of calls and streams
  std::atomic<bool> failed_{false};
  std::atomic<int64_t> graphs_{0};

  Mutex mu_;
  std::map<LtShape, EmulatedAlgorithm> used_ ABSL_GUARDED_BY(mu_);
  std::map<const std::byte*, Pinned> pinned_ ABSL_GUARDED_BY(mu_);
  std::map<void*, int64_t> allocated_ ABSL_GUARDED_BY(mu_);  // of the host
  int64_t pinned_bytes_ ABSL_GUARDED_BY(mu_) = 0;            // of both
};

}  // namespace

void LaunchInEmulatedStream(void* stream, std::function<void()> work) {
  EPS_CHECK(!static_cast<EmulatedStream*>(stream)->captured.has_value());
  static_cast<EmulatedStream*>(stream)->thread.Launch(std::move(work));
}

std::unique_ptr<GpuRuntime> NewEmulatedRuntime(GridOrder order, EmulatedTraits traits) {
  return std::make_unique<EmulatedRuntime>(order, std::move(traits));
}

}  // namespace eps::worker::cuda
