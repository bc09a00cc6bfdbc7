// What a GPU and its link to the host reach at most: bf16 products by cuBLASLt, as the cuda device asks for them, at the
// shapes of the models that bench/gpu/run trains; copies within the device; copies between host and device, each way
// alone and both at once, from memory that is pinned, registered as a worker registers the daemon's, and pageable; what
// registering costs. Random data, warmed up, medians. The largest product comes first, and without a break for as long as
// clocks need to settle, both by the first algorithm, as a run takes it, and by the fastest of several.
//
// Prints tables, and after each section one JSON line of all so far: so the last line counts, also of a program that was
// ended. A section that fails is named in `not_measured`, and the others go on. Exits with 1 where all failed, with 77
// where there is no GPU that would do.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "bench/support.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"
#include "common/ipc/shared_segment.h"
#include "common/numeric/bf16.h"
#include "common/tensor/dtype.h"
#include "cuda_runtime_api.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/nvidia_runtime.h"
#include "nlohmann/json.hpp"

namespace eps::bench {
namespace {

using Json = nlohmann::ordered_json;
using worker::cuda::GpuRuntime;
using worker::cuda::GpuStream;
using worker::cuda::MatMulProblem;

constexpr int kNoGpu = 77;
constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kPieces[] = {32 * kMiB, 256 * kMiB};  // a block of BERT-Large, and of a model of 7 B parameters
constexpr int64_t kRegisterPiece = 32 * kMiB;
constexpr int kPageableRepeats = 2;  // at most: these copies are slow, and workers pin what they copy
constexpr int kMostTried = 8;        // algorithms for the largest product

struct Settings {
  int device = 0;
  int repeats = 7;
  int64_t buffer_mib = 1024;  // gone through in pieces, so that no cache holds it
};

absl::Status Check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // forgotten: it has been told
  return absl::InternalError(absl::StrCat(call, ": ", cudaGetErrorString(error), " (", cudaGetErrorName(error), ")"));
}

#define EPS_BENCH_CUDA(function, ...) EPS_RETURN_IF_ERROR(Check(function(__VA_ARGS__), #function))

double SecondsOf(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void FillRandom(absl::Span<std::byte> bytes) {
  std::mt19937_64 random(bytes.size());
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    const uint64_t value = random();
    std::memcpy(bytes.data() + i, &value, 8);
  }
}

// ---- Copies between host and device ----

struct HostMemory {
  const char* kind;
  absl::Span<std::byte> bytes;
  std::optional<SharedSegment> segment;

  HostMemory(const char* kind, absl::Span<std::byte> bytes) : kind(kind), bytes(bytes) {}
  ~HostMemory() {
    if (segment.has_value()) cudaHostUnregister(bytes.data());
    if (kind == std::string("pinned")) cudaFreeHost(bytes.data());
  }
};

absl::StatusOr<std::unique_ptr<HostMemory>> NewHostMemory(const std::string& kind, int64_t num_bytes) {
  const size_t size = static_cast<size_t>(num_bytes);
  std::unique_ptr<HostMemory> memory;
  if (kind == "pinned") {
    void* start = nullptr;
    EPS_BENCH_CUDA(cudaHostAlloc, &start, size, cudaHostAllocDefault);
    memory = std::make_unique<HostMemory>("pinned", absl::MakeSpan(static_cast<std::byte*>(start), size));
    FillRandom(memory->bytes);
  } else if (kind == "registered") {
    EPS_ASSIGN_OR_RETURN(SharedSegment segment, SharedSegment::Create("eps-bench", num_bytes, SegmentWriter::kCreator));
    FillRandom(segment.bytes());  // its pages are there before they are registered
    EPS_BENCH_CUDA(cudaHostRegister, segment.bytes().data(), size, cudaHostRegisterDefault);
    memory = std::make_unique<HostMemory>("registered", segment.bytes());
    memory->segment.emplace(std::move(segment));
  } else {
    memory = std::make_unique<HostMemory>("pageable", NewMemory(num_bytes));
    FillRandom(memory->bytes);
  }
  return memory;
}

// One way of copying: a buffer on each side, a stream, and events around a pass over them.
class Way {
 public:
  Way(cudaMemcpyKind kind, absl::Span<std::byte> host, std::byte* device) : kind_(kind), host_(host), device_(device) {}
  ~Way() {
    if (end_ != nullptr) cudaEventDestroy(end_);
    if (start_ != nullptr) cudaEventDestroy(start_);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  absl::Status Open() {
    EPS_BENCH_CUDA(cudaStreamCreateWithFlags, &stream_, cudaStreamNonBlocking);
    EPS_BENCH_CUDA(cudaEventCreate, &start_);
    EPS_BENCH_CUDA(cudaEventCreate, &end_);
    return absl::OkStatus();
  }
  // The whole buffer, in pieces; GB/s.
  absl::StatusOr<double> Pass(int64_t piece_bytes) {
    EPS_BENCH_CUDA(cudaEventRecord, start_, stream_);
    for (size_t at = 0; at < host_.size(); at += static_cast<size_t>(piece_bytes)) {
      const size_t size = std::min(static_cast<size_t>(piece_bytes), host_.size() - at);
      if (kind_ == cudaMemcpyHostToDevice) {
        EPS_BENCH_CUDA(cudaMemcpyAsync, device_ + at, host_.data() + at, size, kind_, stream_);
      } else {
        EPS_BENCH_CUDA(cudaMemcpyAsync, host_.data() + at, device_ + at, size, kind_, stream_);
      }
    }
    EPS_BENCH_CUDA(cudaEventRecord, end_, stream_);
    EPS_BENCH_CUDA(cudaEventSynchronize, end_);
    float milliseconds = 0;
    EPS_BENCH_CUDA(cudaEventElapsedTime, &milliseconds, start_, end_);
    return static_cast<double>(host_.size()) / milliseconds / 1e6;
  }

 private:
  const cudaMemcpyKind kind_;
  const absl::Span<std::byte> host_;
  std::byte* const device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t start_ = nullptr, end_ = nullptr;
};

// Passes of `measured`, while `other`, if there is one, goes on passing beside it; the median's GB/s.
absl::StatusOr<double> Measure(const Settings& settings, int repeats, Way& measured, Way* other, int64_t piece_bytes) {
  std::atomic<bool> done = false;
  absl::Status beside;
  std::thread thread;
  if (other != nullptr) {
    thread = std::thread([&] {
      beside = Check(cudaSetDevice(settings.device), "cudaSetDevice");
      while (beside.ok() && !done) beside = other->Pass(piece_bytes).status();
    });
  }
  const auto passes = [&]() -> absl::StatusOr<double> {
    std::vector<double> rates;
    for (int r = -1; r < repeats; ++r) {
      EPS_ASSIGN_OR_RETURN(const double rate, measured.Pass(piece_bytes));
      if (r >= 0) rates.push_back(rate);  // the first one warms up
    }
    return Median(rates);
  };
  const absl::StatusOr<double> rate = passes();
  done = true;
  if (thread.joinable()) thread.join();
  EPS_RETURN_IF_ERROR(beside);
  return rate;
}

absl::StatusOr<Json> MeasureCopies(const Settings& settings, const std::string& kind, std::byte* device) {
  const int64_t num_bytes = settings.buffer_mib * kMiB;
  EPS_ASSIGN_OR_RETURN(const auto in_memory, NewHostMemory(kind, num_bytes));
  EPS_ASSIGN_OR_RETURN(const auto out_memory, NewHostMemory(kind, num_bytes));
  Way in(cudaMemcpyHostToDevice, in_memory->bytes, device);
  Way out(cudaMemcpyDeviceToHost, out_memory->bytes, device + num_bytes);
  EPS_RETURN_IF_ERROR(in.Open());
  EPS_RETURN_IF_ERROR(out.Open());
  const int repeats = kind == "pageable" ? std::min(settings.repeats, kPageableRepeats) : settings.repeats;
  Json rows = Json::array();
  for (const int64_t piece : kPieces) {
    EPS_ASSIGN_OR_RETURN(const double in_alone, Measure(settings, repeats, in, nullptr, piece));
    EPS_ASSIGN_OR_RETURN(const double out_alone, Measure(settings, repeats, out, nullptr, piece));
    EPS_ASSIGN_OR_RETURN(const double in_both, Measure(settings, repeats, in, &out, piece));
    EPS_ASSIGN_OR_RETURN(const double out_both, Measure(settings, repeats, out, &in, piece));
    std::printf("  %-11s %4lld MiB   in %6.1f   out %6.1f   both at once: in %6.1f, out %6.1f   GB/s\n", kind.c_str(),
                static_cast<long long>(piece / kMiB), in_alone, out_alone, in_both, out_both);
    rows.push_back({{"memory", kind},
                    {"piece_bytes", piece},
                    {"in_gb_per_second", in_alone},
                    {"out_gb_per_second", out_alone},
                    {"both_in_gb_per_second", in_both},
                    {"both_out_gb_per_second", out_both}});
  }
  return rows;
}

// Seconds for a GB of shared memory whose pages are there.
absl::StatusOr<double> MeasureRegistering(const Settings& settings, int64_t piece_bytes) {
  EPS_ASSIGN_OR_RETURN(const SharedSegment segment,
                       SharedSegment::Create("eps-bench", settings.buffer_mib * kMiB, SegmentWriter::kCreator));
  const absl::Span<std::byte> bytes = segment.bytes();
  FillRandom(bytes);
  std::vector<double> seconds;
  for (int r = 0; r < 3; ++r) {
    absl::Status status;
    size_t registered = 0;
    seconds.push_back(SecondsOf([&] {
      for (; registered < bytes.size() && status.ok(); registered += static_cast<size_t>(piece_bytes)) {
        const size_t size = std::min(static_cast<size_t>(piece_bytes), bytes.size() - registered);
        status = Check(cudaHostRegister(bytes.data() + registered, size, cudaHostRegisterDefault), "cudaHostRegister");
      }
    }));
    for (size_t at = 0; at < registered; at += static_cast<size_t>(piece_bytes)) cudaHostUnregister(bytes.data() + at);
    EPS_RETURN_IF_ERROR(status);
  }
  return Median(seconds) / static_cast<double>(bytes.size()) * 1e9;
}

// ---- Within the device ----

// How work is timed, after it was warmed up: the median of so many passes, each of which takes so long and has no break.
struct Passes {
  int count = 1;
  int warm_up = 2;              // calls
  double least_seconds = 5e-3;  // between two events, far above what they cost
};
// Long enough for power and heat to lower the clock to where it stays; warmed up for the clock to have risen before.
constexpr Passes kLongPass = {.warm_up = 50, .least_seconds = 2};

// Seconds of `work`, which enqueues in `stream`.
absl::StatusOr<double> DeviceSeconds(const Passes& passes, cudaStream_t stream,
                                     const std::function<absl::Status(int)>& work) {
  cudaEvent_t start = nullptr, end = nullptr;
  EPS_BENCH_CUDA(cudaEventCreate, &start);
  const absl::Cleanup destroy_start = [&] { cudaEventDestroy(start); };
  EPS_BENCH_CUDA(cudaEventCreate, &end);
  const absl::Cleanup destroy_end = [&] { cudaEventDestroy(end); };
  int count = 0;
  const auto time = [&](int times) -> absl::StatusOr<double> {
    EPS_BENCH_CUDA(cudaEventRecord, start, stream);
    for (int i = 0; i < times; ++i) EPS_RETURN_IF_ERROR(work(count++));
    EPS_BENCH_CUDA(cudaEventRecord, end, stream);
    EPS_BENCH_CUDA(cudaEventSynchronize, end);
    float milliseconds = 0;
    EPS_BENCH_CUDA(cudaEventElapsedTime, &milliseconds, start, end);
    return milliseconds / 1e3 / times;
  };
  EPS_RETURN_IF_ERROR(time(passes.warm_up).status());  // loads code, chooses an algorithm
  EPS_ASSIGN_OR_RETURN(const double about, time(3));
  // A tenth more, as the calls may be faster yet.
  const int times = static_cast<int>(std::clamp(1.1 * passes.least_seconds / std::max(about, 1e-7), 3.0, 1e6)) + 1;
  std::vector<double> seconds;
  for (int r = 0; r < passes.count; ++r) {
    EPS_ASSIGN_OR_RETURN(const double one, time(times));
    seconds.push_back(one);
  }
  return Median(seconds);
}

struct Product {
  const char* form;  // "NN" forward, "NT" gradient of the input, "TN" gradient of the weight: fp32, added to
  int64_t M, N, K;
};

constexpr Product kLargest = {"NN", 8192, 8192, 8192};

// Of a block's four products, for each width, with the tokens of a micro-batch.
std::vector<Product> BlockProducts() {
  constexpr int64_t kTokens = 8192;
  std::vector<Product> products;
  for (const int64_t d : {1024, 2048, 4096}) {
    for (const auto& [in, out] : {std::pair{d, 3 * d}, {d, d}, {d, 4 * d}, {4 * d, d}}) {
      products.push_back({"NN", kTokens, out, in});
      products.push_back({"NT", kTokens, in, out});
      products.push_back({"TN", in, out, kTokens});
    }
  }
  return products;
}

// bf16 in [-1, 1), as many as fit; the products read them from several places, so that no cache holds them.
class Operands {
 public:
  static constexpr int64_t kElems = 256 * kMiB;
  explicit Operands(std::byte* device) : device_(reinterpret_cast<uint16_t*>(device)) {}
  absl::Status Fill(cudaStream_t stream) {
    constexpr int64_t kOnceElems = 32 * kMiB;
    std::vector<uint16_t> once(kOnceElems);
    std::mt19937 random(1);
    for (uint16_t& value : once) value = ToBf16(static_cast<float>(static_cast<int32_t>(random())) * 0x1p-31f).bits;
    for (int64_t at = 0; at < kElems; at += kOnceElems) {
      EPS_BENCH_CUDA(cudaMemcpyAsync, device_ + at, once.data(), kOnceElems * 2, cudaMemcpyHostToDevice, stream);
    }
    EPS_BENCH_CUDA(cudaStreamSynchronize, stream);  // `once` has been read
    return absl::OkStatus();
  }
  const uint16_t* Place(int64_t num_elems, int turn) const { return device_ + turn % (kElems / num_elems) * num_elems; }

 private:
  uint16_t* const device_;
};

MatMulProblem ProblemOf(const Product& p, std::byte* result) {
  const bool trans_a = p.form[0] == 'T', trans_b = p.form[1] == 'T';
  return {.M = p.M,
          .N = p.N,
          .K = p.K,
          .lda = trans_a ? p.M : p.K,
          .trans_a = trans_a,
          .ldb = trans_b ? p.K : p.N,
          .trans_b = trans_b,
          .c = result,
          .ldc = p.N,
          .addend = trans_a ? result : nullptr,
          .operand_dtype = Dtype::kBf16,
          .result_dtype = trans_a ? Dtype::kF32 : Dtype::kBf16};
}

// Products in one stream, with operands and a result on the device.
class Multiplier {
 public:
  Multiplier(GpuRuntime& runtime, GpuStream stream, std::byte* device)
      : runtime_(runtime),
        stream_(stream),
        cuda_stream_(static_cast<cudaStream_t>(stream.handle)),
        operands_(device),
        result_(device + 2 * Operands::kElems) {}
  absl::Status Fill() { return operands_.Fill(cuda_stream_); }

  absl::StatusOr<double> TeraflopsOf(const Product& p, const Passes& passes) {
    MatMulProblem problem = ProblemOf(p, result_);
    // What is added to is a number. In the stream: no other is ordered before it.
    EPS_BENCH_CUDA(cudaMemsetAsync, result_, 0, static_cast<size_t>(p.M * p.N) * 4, cuda_stream_);
    EPS_ASSIGN_OR_RETURN(const double seconds, DeviceSeconds(passes, cuda_stream_, [&](int turn) {
                           problem.a = operands_.Place(p.M * p.K, turn);
                           problem.b = operands_.Place(p.K * p.N, turn + 1);
                           return runtime_.MatMul(stream_, problem);
                         }));
    return 2e-12 * static_cast<double>(p.M) * static_cast<double>(p.N) * static_cast<double>(p.K) / seconds;
  }

  struct Fastest {
    int tried;  // algorithms
    double teraflops;
  };
  // By the fastest of the algorithms that are offered; one that fails is left out. The first counts again afterwards.
  absl::StatusOr<Fastest> FastestTeraflopsOf(const Product& p, const Settings& settings) {
    const MatMulProblem problem = ProblemOf(p, result_);
    EPS_ASSIGN_OR_RETURN(const std::vector<std::string> algorithms, runtime_.MatMulAlgorithms(problem, kMostTried));
    const absl::Cleanup put_back = [&] { runtime_.UseMatMulAlgorithm(problem, algorithms.front()).IgnoreError(); };
    const std::string* fastest = nullptr;
    double best = 0;
    for (const std::string& algorithm : algorithms) {
      if (!runtime_.UseMatMulAlgorithm(problem, algorithm).ok()) continue;
      const absl::StatusOr<double> rate = TeraflopsOf(p, {.count = settings.repeats});
      if (!rate.ok() || !(*rate > best)) continue;
      best = *rate;
      fastest = &algorithm;
    }
    if (fastest == nullptr) return absl::InternalError("none of the algorithms that are offered works");
    EPS_RETURN_IF_ERROR(runtime_.UseMatMulAlgorithm(problem, *fastest));
    EPS_ASSIGN_OR_RETURN(const double rate, TeraflopsOf(p, kLongPass));
    return Fastest{.tried = static_cast<int>(algorithms.size()), .teraflops = rate};
  }

 private:
  GpuRuntime& runtime_;
  const GpuStream stream_;
  cudaStream_t const cuda_stream_;
  Operands operands_;
  std::byte* const result_;
};

absl::Status MeasureProducts(const Settings& settings, GpuRuntime& runtime, std::byte* device, Json& json) {
  EPS_ASSIGN_OR_RETURN(const GpuStream stream, runtime.NewStream());
  const absl::Cleanup destroy = [&] { runtime.DestroyStream(stream); };
  Multiplier multiplier(runtime, stream, device);
  EPS_RETURN_IF_ERROR(multiplier.Fill());
  const auto add = [&](const Product& p, const std::string& algorithm, double teraflops) {
    std::printf("  %s %6lld %6lld %6lld  %6.1f TFLOP/s, %s algorithm\n", p.form, static_cast<long long>(p.M),
                static_cast<long long>(p.N), static_cast<long long>(p.K), teraflops, algorithm.c_str());
    json["products"].push_back(
        {{"form", p.form}, {"M", p.M}, {"N", p.N}, {"K", p.K}, {"algorithm", algorithm}, {"tflops", teraflops}});
    json["peak_bf16_tflops"] = std::max(json.value("peak_bf16_tflops", 0.0), teraflops);
  };
  EPS_ASSIGN_OR_RETURN(const double largest, multiplier.TeraflopsOf(kLargest, kLongPass));
  add(kLargest, "first", largest);
  if (const auto fastest = multiplier.FastestTeraflopsOf(kLargest, settings); fastest.ok()) {
    add(kLargest, absl::StrCat("fastest of ", fastest->tried), fastest->teraflops);
  } else {  // the others are still worth knowing
    json["not_measured"]["the fastest algorithm"] = std::string(fastest.status().message());
  }
  for (const Product& p : BlockProducts()) {
    EPS_ASSIGN_OR_RETURN(const double rate, multiplier.TeraflopsOf(p, {.count = settings.repeats}));
    add(p, "first", rate);
  }
  return absl::OkStatus();
}

struct Section {
  const char* name;
  std::function<absl::Status(Json&)> measure;  // adds what it finds
};

// Errors: the last section's, where each failed
absl::Status MeasureAll(absl::Span<const Section> sections, Json& json) {
  absl::Status last;
  size_t failed = 0;
  for (const Section& section : sections) {
    if (const absl::Status status = section.measure(json); !status.ok()) {
      last = status;
      ++failed;
      json["not_measured"][section.name] = std::string(status.message());
    }
    std::printf("%s\n", json.dump().c_str());
    std::fflush(stdout);  // whoever ends this program has what it found
  }
  return failed == sections.size() ? last : absl::OkStatus();
}

absl::Status Run(const Settings& settings, GpuRuntime& runtime) {
  EPS_BENCH_CUDA(cudaSetDevice, settings.device);
  const int64_t buffer_bytes = settings.buffer_mib * kMiB;
  // Copies: one buffer for each way. Products: bf16 operands, and the largest result in fp32.
  const int64_t device_bytes = std::max(2 * buffer_bytes, 2 * Operands::kElems + int64_t{4} * 8192 * 16384);
  std::byte* device = nullptr;
  EPS_BENCH_CUDA(cudaMalloc, reinterpret_cast<void**>(&device), static_cast<size_t>(device_bytes));
  const absl::Cleanup free = [&] { cudaFree(device); };
  const auto add_copies = [&](const std::string& kind, Json& json) -> absl::Status {
    EPS_ASSIGN_OR_RETURN(const Json rows, MeasureCopies(settings, kind, device));
    json["copies"].insert(json["copies"].end(), rows.begin(), rows.end());
    return absl::OkStatus();
  };
  // What a step is bound by first, what is slow last.
  const std::vector<Section> sections = {
      {"products",
       [&](Json& json) -> absl::Status {
         std::printf("bf16 products by cuBLASLt: M, N, K\n");
         return MeasureProducts(settings, runtime, device, json);
       }},
      {"copies within the device",
       [&](Json& json) -> absl::Status {
         EPS_ASSIGN_OR_RETURN(const double seconds, DeviceSeconds({.count = settings.repeats}, nullptr, [&](int) {
                                return Check(
                                    cudaMemcpyAsync(device + buffer_bytes, device, static_cast<size_t>(buffer_bytes),
                                                    cudaMemcpyDeviceToDevice, nullptr),
                                    "cudaMemcpyAsync");
                              }));
         json["device_copy_gb_per_second"] = 2e-9 * static_cast<double>(buffer_bytes) / seconds;
         std::printf("within the device: %.0f GB/s, read and written\ncopies of %lld MiB in pieces, medians of %d\n",
                     json["device_copy_gb_per_second"].get<double>(), static_cast<long long>(settings.buffer_mib),
                     settings.repeats);
         return absl::OkStatus();
       }},
      {"registered copies", [&](Json& json) { return add_copies("registered", json); }},
      {"pinned copies", [&](Json& json) { return add_copies("pinned", json); }},
      {"registering",
       [&](Json& json) -> absl::Status {
         EPS_ASSIGN_OR_RETURN(const double whole, MeasureRegistering(settings, buffer_bytes));
         EPS_ASSIGN_OR_RETURN(const double pieces, MeasureRegistering(settings, kRegisterPiece));
         std::printf("  registering shared memory: %.3f s a GB at once, %.3f s in pieces of %lld MiB\n", whole, pieces,
                     static_cast<long long>(kRegisterPiece / kMiB));
         json["register_seconds_per_gb"] = whole;
         json["register_in_pieces_seconds_per_gb"] = pieces;
         return absl::OkStatus();
       }},
      {"pageable copies", [&](Json& json) { return add_copies("pageable", json); }}};
  Json json = {{"name", "gpu_ceilings"},
               {"gpu", runtime.model()},
               {"repeats", settings.repeats},
               {"copies", Json::array()},
               {"not_measured", Json::object()}};
  std::printf("%s\n", runtime.model().c_str());
  return MeasureAll(sections, json);
}

}  // namespace
}  // namespace eps::bench

int main(int argc, char** argv) {
  eps::bench::Settings settings;
  CLI::App app{"What a GPU and its link to the host reach at most."};
  app.add_option("--device", settings.device, "Index of the GPU")->capture_default_str();
  app.add_option("--repeats", settings.repeats, "Measured passes of each")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000));
  app.add_option("--buffer-mib", settings.buffer_mib, "Host memory that is copied, in each way")
      ->capture_default_str()
      ->check(CLI::Range(256, 65536));
  CLI11_PARSE(app, argc, argv);
  const auto runtime = eps::worker::cuda::NewNvidiaRuntime(settings.device);
  if (!runtime.ok()) {
    std::fprintf(stderr, "cannot run here: %s\n", std::string(runtime.status().message()).c_str());
    return eps::bench::kNoGpu;
  }
  if (const absl::Status status = eps::bench::Run(settings, **runtime); !status.ok()) {
    std::fprintf(stderr, "gpu_ceilings: %s\n", status.ToString().c_str());
    return 1;
  }
  return 0;
}
