#include "gpu_worker/device/cuda/nvidia_runtime.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/tensor/dtype.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/device/cuda/cublaslt_library.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/fused_attention.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/kernel_code.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/lt_matmul.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {
namespace {

constexpr int kLeastMajor = 8;  // compute capability 8.0, Ampere
// Of 48 KiB, which what a kernel has for certain counts to as well: at most 1 KiB in ours.
constexpr int kSharedBytesWithoutAsking = 46 * 1024;
constexpr int64_t kMostReadByKernel = int64_t{1} << 20;  // more is the copy engine's, which takes no multiprocessor
// The least driver for the toolkit's major version; in NVIDIA's release notes of each.
constexpr char kLeastDriver[] = "580";
static_assert(CUDART_VERSION / 1000 == 13, "kLeastDriver is CUDA 13's");

std::string VersionName(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// Errors of kernels and copies that run, and not of calls: any call made later returns them.
bool IsOfRunningWork(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

absl::Status Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string words = absl::StrCat(cudaGetErrorString(error), " (", cudaGetErrorName(error), ")");
  cudaGetLastError();  // forgotten: it has been told
  if (IsOfRunningWork(error)) return FoundBy(call, words);
  const std::string message = absl::StrCat(call, ": ", words);
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::Status CheckDriver() {
  const std::string needs = absl::StrCat("this build is for CUDA ", VersionName(CUDART_VERSION),
                                         ", which needs NVIDIA's driver ", kLeastDriver, " or a newer one");
  int driver = 0;
  EPS_RETURN_IF_ERROR(Check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  if (driver == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no NVIDIA driver is found (libcuda.so.1); ", needs,
                     "; in a container, start it with the GPU (docker run --gpus all)"));
  }
  if (driver / 1000 < CUDART_VERSION / 1000) {
    return absl::FailedPreconditionError(
        absl::StrCat("the NVIDIA driver of this machine is for CUDA ", VersionName(driver), "; ", needs));
  }
  return absl::OkStatus();
}

// Of our own kernels on the GPU in use.
// Errors: FAILED_PRECONDITION they were not compiled for it
absl::StatusOr<std::string> KernelCodeName(absl::string_view gpu) {
  int driver = 0;
  EPS_RETURN_IF_ERROR(Check(cudaDriverGetVersion(&driver), "cudaDriverGetVersion"));
  cudaFuncAttributes attributes = {};
  const KernelCall any = DropoutMask(Dtype::kBf16, 1, {}, nullptr);
  const cudaError_t error = cudaFuncGetAttributes(&attributes, any.function);
  if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
    cudaGetLastError();  // forgotten: it is told
    return absl::FailedPreconditionError(
        absl::StrCat("the kernels of this build were not compiled for ", gpu, "; ./build --gpus says for which GPUs"));
  }
  EPS_RETURN_IF_ERROR(Check(error, "cudaFuncGetAttributes"));
  return NameOf({.ptx = attributes.ptxVersion, .machine = attributes.binaryVersion}, VersionName(CUDART_VERSION),
                VersionName(driver));
}

class MaskKernels : public SdpaMaskKernels {
 public:
  MaskKernels(GpuRuntime& runtime, GpuStream stream, Dtype act) : runtime_(runtime), stream_(stream), act_(act) {}
  absl::Status Kept(int64_t n, const DeviceDropout& dropout, void* y) const override {
    return runtime_.Launch(stream_, DropoutMask(act_, n, dropout, y));
  }
  absl::Status DocumentBias(int64_t B, int64_t T, const Documents& documents, void* y) const override {
    return runtime_.Launch(stream_, cuda::DocumentBias(act_, B, T, documents, y));
  }

 private:
  GpuRuntime& runtime_;
  const GpuStream stream_;
  const Dtype act_;
};

class NvidiaRuntime : public GpuRuntime {
 public:
  NvidiaRuntime(int index, int sm_major, std::string gpu) : index_(index), sm_major_(sm_major), gpu_(std::move(gpu)) {}
  ~NvidiaRuntime() override {
    if (!Use().ok()) return;
    attention_.reset();
    matmul_.reset();
    if (workspace_ != nullptr) cudaFree(workspace_);
  }
  absl::Status Init() {
    EPS_RETURN_IF_ERROR(Use());
    EPS_ASSIGN_OR_RETURN(kernel_code_, KernelCodeName(gpu_));
    EPS_RETURN_IF_ERROR(Check(cudaMalloc(&workspace_, kMatMulWorkspaceBytes), "cudaMalloc"));
    EPS_ASSIGN_OR_RETURN(matmul_, CublasLtLibrary::Load(workspace_));
    absl::StatusOr<std::unique_ptr<FusedAttention>> attention = LoadFusedAttention(sm_major_);
    if (attention.ok()) {
      attention_ = *std::move(attention);
    } else {
      LogWarning("attention_is_plain_and_slow", {{"why", attention.status().message()}});
    }
    return absl::OkStatus();
  }

  std::string model() const override {
    return absl::StrCat("cuda ", gpu_, " ", matmul_->version(), " ",
                        attention_ == nullptr ? "plain attention" : attention_->version(), " ", kernel_code_);
  }
  int64_t held_bytes() const override {
    return kMatMulWorkspaceBytes + (attention_ == nullptr ? 0 : attention_->held_bytes());
  }

  absl::StatusOr<GpuMemory> Memory() override {
    EPS_RETURN_IF_ERROR(Use());
    size_t free_bytes = 0, total_bytes = 0;
    EPS_RETURN_IF_ERROR(Check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
    return GpuMemory{.free_bytes = static_cast<int64_t>(free_bytes), .total_bytes = static_cast<int64_t>(total_bytes)};
  }
  absl::StatusOr<void*> Allocate(int64_t num_bytes) override {
    EPS_RETURN_IF_ERROR(Use());
    void* memory = nullptr;
    const absl::Status status = Check(cudaMalloc(&memory, static_cast<size_t>(num_bytes)), "cudaMalloc");
    if (status.ok()) return memory;
    EPS_ASSIGN_OR_RETURN(const GpuMemory left, Memory());
    return Annotate(status, absl::StrCat("the GPU has ", left.free_bytes, " bytes free, and ", num_bytes,
                                         " are wanted; give a smaller --device-memory"));
  }
  void Free(void* memory) override {
    if (Use().ok()) cudaFree(memory);
  }

  absl::StatusOr<void*> AllocateHost(int64_t num_bytes) override {
    EPS_RETURN_IF_ERROR(Use());
    void* memory = nullptr;
    EPS_RETURN_IF_ERROR_WITH(
        Check(cudaHostAlloc(&memory, static_cast<size_t>(num_bytes), cudaHostAllocDefault), "cudaHostAlloc"),
        absl::StrCat(num_bytes, " bytes of pinned host memory"));
    MutexLock lock(mu_);
    host_memory_[static_cast<const std::byte*>(memory)] = num_bytes;
    return memory;
  }
  void FreeHost(void* memory) override {
    {
      MutexLock lock(mu_);
      host_memory_.erase(static_cast<const std::byte*>(memory));
    }
    if (Use().ok()) cudaFreeHost(memory);
  }
  absl::Status RegisterHost(absl::Span<const std::byte> pages, HostAccess) override {
    EPS_RETURN_IF_ERROR(Use());
    return Check(cudaHostRegister(const_cast<std::byte*>(pages.data()), pages.size(), cudaHostRegisterDefault),
                 "cudaHostRegister");
  }
  void UnregisterHost(absl::Span<const std::byte> pages) override {
    if (Use().ok()) cudaHostUnregister(const_cast<std::byte*>(pages.data()));
  }

  absl::StatusOr<GpuStream> NewStream(GpuStreamUse use) override {
    EPS_RETURN_IF_ERROR(Use());
    int least = 0, greatest = 0;
    EPS_RETURN_IF_ERROR(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange"));
    cudaStream_t stream = nullptr;
    EPS_RETURN_IF_ERROR(Check(
        cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, use == GpuStreamUse::kCopies ? greatest : least),
        "cudaStreamCreateWithPriority"));
    return GpuStream{stream};
  }
  void DestroyStream(GpuStream stream) override {
    if (Use().ok()) cudaStreamDestroy(At(stream));
  }
  absl::StatusOr<GpuEvent> NewEvent(GpuEventUse use) override {
    EPS_RETURN_IF_ERROR(Use());
    cudaEvent_t event = nullptr;
    // A host that waits sleeps: cores are for the daemon.
    const unsigned flags = use == GpuEventUse::kTiming    ? cudaEventDefault
                           : use == GpuEventUse::kArrival ? cudaEventDisableTiming | cudaEventBlockingSync
                                                          : cudaEventDisableTiming;
    EPS_RETURN_IF_ERROR(Check(cudaEventCreateWithFlags(&event, flags), "cudaEventCreateWithFlags"));
    return GpuEvent{event};
  }
  void DestroyEvent(GpuEvent event) override {
    if (Use().ok()) cudaEventDestroy(At(event));
  }

  absl::Status CopyIn(GpuStream stream, void* device, absl::Span<const std::byte> host) override {
    EPS_RETURN_IF_ERROR(Use());
    if (IsReadByKernel(host, device)) return Launch(stream, CopyWords(std::ssize(host), host.data(), device));
    return Check(cudaMemcpyAsync(device, host.data(), host.size(), cudaMemcpyHostToDevice, At(stream)),
                 "cudaMemcpyAsync to the device");
  }
  absl::Status CopyOut(GpuStream stream, absl::Span<std::byte> host, const void* device) override {
    EPS_RETURN_IF_ERROR(Use());
    return Check(cudaMemcpyAsync(host.data(), device, host.size(), cudaMemcpyDeviceToHost, At(stream)),
                 "cudaMemcpyAsync to the host");
  }
  absl::Status Launch(GpuStream stream, const KernelCall& call) override {
    EPS_RETURN_IF_ERROR(Use());
    EPS_RETURN_IF_ERROR(AllowShared(call));
    const dim3 grid(static_cast<unsigned>(call.shape.blocks_x), static_cast<unsigned>(call.shape.blocks_y));
    const dim3 block(static_cast<unsigned>(call.shape.threads));
    return Check(cudaLaunchKernel(call.function, grid, block, const_cast<void**>(call.arguments.data()),
                                  static_cast<size_t>(call.shape.shared_bytes), At(stream)),
                 "cudaLaunchKernel");
  }
  absl::Status MatMul(GpuStream stream, const MatMulProblem& problem) override {
    EPS_RETURN_IF_ERROR(Use());
    return matmul_->MatMul(At(stream), problem);
  }
  absl::StatusOr<std::vector<std::string>> MatMulAlgorithms(const MatMulProblem& problem, int most) override {
    EPS_RETURN_IF_ERROR(Use());
    return matmul_->Algorithms(LtShapeOf(problem), most);
  }
  absl::Status UseMatMulAlgorithm(const MatMulProblem& problem, const std::string& algorithm) override {
    EPS_RETURN_IF_ERROR(Use());
    return matmul_->UseAlgorithm(LtShapeOf(problem), algorithm);
  }

  absl::StatusOr<bool> TakesAttention(const SdpaProblem& problem) override {
    if (attention_ == nullptr) return false;
    EPS_RETURN_IF_ERROR(Use());
    return attention_->Takes(problem);
  }
  absl::StatusOr<std::string> AttentionAlgorithm(const SdpaProblem& problem) override {
    EPS_ASSIGN_OR_RETURN(const bool takes, TakesAttention(problem));
    if (!takes) return std::string(kPlainAttention);
    return attention_->Algorithm(problem);
  }
  absl::StatusOr<SdpaEngines> AttentionEngines(const SdpaProblem& problem) override {
    EPS_CHECK(attention_ != nullptr);
    EPS_RETURN_IF_ERROR(Use());
    return attention_->Engines(problem);
  }
  absl::Status Attention(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) override {
    EPS_RETURN_IF_ERROR(Use());
    return attention_->Forward(At(stream), problem, arrays, MaskKernels(*this, stream, problem.act));
  }
  absl::Status AttentionBackward(GpuStream stream, const SdpaProblem& problem, const SdpaArrays& arrays) override {
    EPS_RETURN_IF_ERROR(Use());
    return attention_->Backward(At(stream), problem, arrays, MaskKernels(*this, stream, problem.act));
  }

  // Relaxed: what other threads do meanwhile, such as pinning memory, is no part of it, and is not refused.
  absl::Status BeginCapture(GpuStream stream) override {
    EPS_RETURN_IF_ERROR(Use());
    if (attention_ != nullptr) attention_->KeepWorkspaces();
    return Check(cudaStreamBeginCapture(At(stream), cudaStreamCaptureModeRelaxed), "cudaStreamBeginCapture");
  }
  absl::StatusOr<GpuGraph> EndCapture(GpuStream stream) override {
    EPS_RETURN_IF_ERROR(Use());
    cudaGraph_t captured = nullptr;
    EPS_RETURN_IF_ERROR(Check(cudaStreamEndCapture(At(stream), &captured), "cudaStreamEndCapture"));
    size_t nodes = 0;
    cudaGraphExec_t graph = nullptr;
    absl::Status status = Check(cudaGraphGetNodes(captured, nullptr, &nodes), "cudaGraphGetNodes");
    if (status.ok()) status = Check(cudaGraphInstantiate(&graph, captured, 0), "cudaGraphInstantiate");
    // Where the device has no room for it that is known now, and not at a launch, which would end the run.
    if (status.ok()) status = Check(cudaGraphUpload(graph, At(stream)), "cudaGraphUpload");
    cudaGraphDestroy(captured);
    if (!status.ok() && graph != nullptr) cudaGraphExecDestroy(graph);
    EPS_RETURN_IF_ERROR(status);
    return GpuGraph{.handle = graph, .nodes = static_cast<int64_t>(nodes)};
  }
  absl::Status LaunchGraph(GpuStream stream, GpuGraph graph) override {
    EPS_RETURN_IF_ERROR(Use());
    return Check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph.handle), At(stream)), "cudaGraphLaunch");
  }
  void DestroyGraph(GpuGraph graph) override {
    if (Use().ok()) cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph.handle));
  }

  absl::Status Record(GpuStream stream, GpuEvent event) override {
    EPS_RETURN_IF_ERROR(Use());
    return Check(cudaEventRecord(At(event), At(stream)), "cudaEventRecord");
  }
  absl::Status Wait(GpuStream stream, GpuEvent event) override {
    EPS_RETURN_IF_ERROR(Use());
    return Check(cudaStreamWaitEvent(At(stream), At(event), 0), "cudaStreamWaitEvent");
  }
  absl::Status Synchronize(GpuStream stream) override {
    EPS_RETURN_IF_ERROR(Use());
    return Check(cudaStreamSynchronize(At(stream)), "cudaStreamSynchronize");
  }
  absl::Status Await(GpuEvent event) override {
    EPS_RETURN_IF_ERROR(Use());
    return Check(cudaEventSynchronize(At(event)), "cudaEventSynchronize");
  }
  absl::StatusOr<bool> IsReached(GpuEvent event) override {
    EPS_RETURN_IF_ERROR(Use());
    const cudaError_t found = cudaEventQuery(At(event));
    if (found == cudaErrorNotReady) {
      cudaGetLastError();  // it is none
      return false;
    }
    EPS_RETURN_IF_ERROR(Check(found, "cudaEventQuery"));
    return true;
  }
  absl::StatusOr<double> SecondsBetween(GpuEvent start, GpuEvent end) override {
    EPS_RETURN_IF_ERROR(Use());
    float milliseconds = 0;
    EPS_RETURN_IF_ERROR(Check(cudaEventElapsedTime(&milliseconds, At(start), At(end)), "cudaEventElapsedTime"));
    return milliseconds / 1e3;
  }

 private:
  static cudaStream_t At(GpuStream stream) { return static_cast<cudaStream_t>(stream.handle); }
  static cudaEvent_t At(GpuEvent event) { return static_cast<cudaEvent_t>(event.handle); }

  // All copies in are one copy engine's, in whatever stream: a few KiB of tokens would wait for all weights that are
  // being pulled, 13 ms at each step of BERT-Large held whole (an H200), and the flag of each layer's gradient
  // likewise. So a kernel reads what is small.
  bool IsReadByKernel(absl::Span<const std::byte> host, const void* device) {
    const auto is_aligned = [](const void* start) { return reinterpret_cast<uintptr_t>(start) % kCopyWordBytes == 0; };
    if (std::ssize(host) > kMostReadByKernel || std::ssize(host) % kCopyWordBytes != 0) return false;
    if (!is_aligned(host.data()) || !is_aligned(device)) return false;
    MutexLock lock(mu_);
    const auto behind = host_memory_.upper_bound(host.data());
    if (behind == host_memory_.begin()) return false;
    const auto& [start, num_bytes] = *std::prev(behind);
    return host.data() + host.size() <= start + num_bytes;
  }

  // CUDA's current device belongs to a thread, and calls come from several.
  absl::Status Use() { return Check(cudaSetDevice(index_), "cudaSetDevice"); }

  // More than 48 KiB must be asked for, once for each kernel.
  absl::Status AllowShared(const KernelCall& call) {
    if (call.shape.shared_bytes <= kSharedBytesWithoutAsking) return absl::OkStatus();
    {
      MutexLock lock(mu_);
      if (allowed_.count(call.function) > 0) return absl::OkStatus();
    }
    EPS_RETURN_IF_ERROR(
        Check(cudaFuncSetAttribute(call.function, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes),
              "cudaFuncSetAttribute"));
    MutexLock lock(mu_);
    allowed_.insert(call.function);
    return absl::OkStatus();
  }

  const int index_, sm_major_;
  const std::string gpu_;    // its name and compute capability
  std::string kernel_code_;  // what it runs of our own kernels; fixed by Init
  void* workspace_ = nullptr;
  std::unique_ptr<CublasLtLibrary> matmul_;
  std::unique_ptr<FusedAttention> attention_;  // null: there is no cuDNN

  Mutex mu_;
  std::set<const void*> allowed_ ABSL_GUARDED_BY(mu_);
  std::map<const std::byte*, int64_t> host_memory_ ABSL_GUARDED_BY(mu_);  // of AllocateHost: bytes, by where they begin
};

}  // namespace

absl::StatusOr<int> CountNvidiaGpus() {
  EPS_RETURN_IF_ERROR(CheckDriver());
  int count = 0;
  const cudaError_t counted = cudaGetDeviceCount(&count);
  if (counted == cudaErrorNoDevice) return 0;
  if (counted == cudaSuccess) return count;
  // Of the machine all of them: a driver that is half there, another library's version, a container's devices.
  cudaGetLastError();  // forgotten: it is told
  return absl::FailedPreconditionError(absl::StrCat(
      "cudaGetDeviceCount: ", cudaGetErrorString(counted), " (", cudaGetErrorName(counted), ")",
      counted == cudaErrorCompatNotSupportedOnDevice
          ? "; take the compatibility libraries (cuda-compat, /usr/local/cuda/compat) out of LD_LIBRARY_PATH"
          : "; nvidia-smi says more"));
}

absl::StatusOr<std::unique_ptr<GpuRuntime>> NewNvidiaRuntime(int index) {
  EPS_ASSIGN_OR_RETURN(const int count, CountNvidiaGpus());
  if (index < 0 || index >= count) {
    return absl::NotFoundError(absl::StrCat("cuda:", index, ": this process sees ", count,
                                            " GPU(s), counted from 0 (CUDA_VISIBLE_DEVICES narrows them down)"));
  }
  // The threads that issue work sleep while they wait: their cores are for the daemon.
  EPS_RETURN_IF_ERROR(
      Check(cudaInitDevice(index, cudaDeviceScheduleBlockingSync, cudaInitDeviceFlagsAreValid), "cudaInitDevice"));
  cudaDeviceProp properties = {};
  EPS_RETURN_IF_ERROR(Check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  if (properties.major < kLeastMajor) {
    return absl::FailedPreconditionError(absl::StrCat("cuda:", index, " is a ", properties.name,
                                                      " of compute capability ", properties.major, ".",
                                                      properties.minor, "; the least is ", kLeastMajor, ".0"));
  }
  auto runtime = std::make_unique<NvidiaRuntime>(
      index, properties.major, absl::StrCat(properties.name, " sm_", properties.major, properties.minor));
  EPS_RETURN_IF_ERROR(runtime->Init());
  return runtime;
}

}  // namespace eps::worker::cuda
