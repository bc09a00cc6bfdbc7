#include "gpu_worker/device/cuda/kernel_choices.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/numeric/philox.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"

namespace eps::worker::cuda {
namespace {

// Less than that is noise, and the library's guess goes first.
constexpr double kFasterBy = 0.98;
constexpr int64_t kPatternBytes = int64_t{1} << 20;

// Times products in a stream of its own. Owns handles of the runtime.
class Stopwatch {
 public:
  // Errors: the runtime's
  static absl::StatusOr<std::unique_ptr<Stopwatch>> New(GpuRuntime& runtime) {
    std::unique_ptr<Stopwatch> made(new Stopwatch(runtime));
    EPS_ASSIGN_OR_RETURN(made->stream_, runtime.NewStream());
    EPS_ASSIGN_OR_RETURN(made->start_, runtime.NewEvent(GpuEventUse::kTiming));
    EPS_ASSIGN_OR_RETURN(made->end_, runtime.NewEvent(GpuEventUse::kTiming));
    EPS_ASSIGN_OR_RETURN(made->pattern_, runtime.AllocateHost(kPatternBytes));
    made->MakePattern();
    return made;
  }
  ~Stopwatch() {
    if (stream_.handle != nullptr) {
      runtime_.Synchronize(stream_).IgnoreError();
      runtime_.DestroyStream(stream_);
    }
    for (const GpuEvent event : {start_, end_}) {
      if (event.handle != nullptr) runtime_.DestroyEvent(event);
    }
    if (pattern_ != nullptr) runtime_.FreeHost(pattern_);
  }

  absl::Status FillOperands(const MatMulProblem& problem) {
    const LtShape shape = LtShapeOf(problem);
    EPS_RETURN_IF_ERROR(Fill(problem.b, Bytes(shape.a)));
    EPS_RETURN_IF_ERROR(Fill(problem.a, Bytes(shape.b)));
    if (problem.addend != nullptr) EPS_RETURN_IF_ERROR(Fill(problem.addend, Bytes(shape.d)));
    if (problem.bias != nullptr) EPS_RETURN_IF_ERROR(Fill(problem.bias, problem.N * SizeOf(problem.operand_dtype)));
    return runtime_.Synchronize(stream_);
  }

  // Of `calls` products, one behind the other.
  absl::StatusOr<double> Seconds(const MatMulProblem& problem, int calls) {
    EPS_RETURN_IF_ERROR(runtime_.Record(stream_, start_));
    for (int i = 0; i < calls; ++i) EPS_RETURN_IF_ERROR(runtime_.MatMul(stream_, problem));
    EPS_RETURN_IF_ERROR(runtime_.Record(stream_, end_));
    EPS_RETURN_IF_ERROR(runtime_.Synchronize(stream_));
    return runtime_.SecondsBetween(start_, end_);
  }

 private:
  explicit Stopwatch(GpuRuntime& runtime) : runtime_(runtime) {}

  // Bf16 numbers of +-[0.5, 1); two of them are an fp32 one of the same range, and read as fp16 they are of +-[1.75, 1.88).
  void MakePattern() {
    std::vector<uint16_t> numbers(kPatternBytes / sizeof(uint16_t));
    for (size_t i = 0; i < numbers.size(); ++i) {
      const uint64_t random = Mix64(i);
      numbers[i] = static_cast<uint16_t>((random & 1) << 15 | 0x3f00 | (random >> 1 & 0x7f));
    }
    std::memcpy(pattern_, numbers.data(), static_cast<size_t>(kPatternBytes));
  }
  // As it lies in memory, the gaps of its leading dimension but the last included.
  static int64_t Bytes(const LtMatrix& matrix) {
    return ((matrix.columns - 1) * matrix.ld + matrix.rows) * SizeOf(matrix.dtype);
  }
  absl::Status Fill(const void* operand, int64_t num_bytes) {
    auto* to = static_cast<std::byte*>(const_cast<void*>(operand));  // in the arena
    for (int64_t done = 0; done < num_bytes; done += kPatternBytes) {
      const auto part = static_cast<size_t>(std::min(kPatternBytes, num_bytes - done));
      EPS_RETURN_IF_ERROR(
          runtime_.CopyIn(stream_, to + done, absl::MakeConstSpan(static_cast<const std::byte*>(pattern_), part)));
    }
    return absl::OkStatus();
  }

  GpuRuntime& runtime_;
  GpuStream stream_;
  GpuEvent start_, end_;
  void* pattern_ = nullptr;
};

struct Candidate {
  std::string algorithm;
  double seconds = std::numeric_limits<double>::infinity();  // the least of all rounds
  absl::Status status;
};

// One round of a candidate. Its error leaves it out.
absl::Status Try(GpuRuntime& runtime, Stopwatch& stopwatch, const MatMulProblem& problem, int calls,
                 Candidate& candidate) {
  EPS_RETURN_IF_ERROR(runtime.UseMatMulAlgorithm(problem, candidate.algorithm));
  EPS_ASSIGN_OR_RETURN(const double seconds, stopwatch.Seconds(problem, calls));
  candidate.seconds = std::min(candidate.seconds, seconds / calls);
  return absl::OkStatus();
}

absl::StatusOr<std::string> Fastest(GpuRuntime& runtime, Stopwatch& stopwatch, const MatMulProblem& problem,
                                    const std::vector<std::string>& algorithms) {
  std::vector<Candidate> candidates;
  for (const std::string& algorithm : algorithms) candidates.push_back({.algorithm = algorithm});
  EPS_RETURN_IF_ERROR(stopwatch.FillOperands(problem));
  // The first round loads code and wakes the clocks, and does not count. In turns, so that a clock that drifts favours
  // nobody.
  for (int round = 0; round <= KernelChoices::kRounds; ++round) {
    for (Candidate& candidate : candidates) {
      if (!candidate.status.ok()) continue;
      const int calls = round == 0 ? 1 : KernelChoices::kCallsPerRound;
      candidate.status = Try(runtime, stopwatch, problem, calls, candidate);
      if (round == 0) candidate.seconds = std::numeric_limits<double>::infinity();
    }
  }
  const Candidate* best = nullptr;
  for (const Candidate& candidate : candidates) {
    if (!candidate.status.ok()) continue;
    if (best == nullptr || candidate.seconds < best->seconds * kFasterBy) best = &candidate;
  }
  if (best == nullptr) return candidates.front().status;
  return best->algorithm;
}

}  // namespace

std::string KeyOf(const SdpaProblem& p) {
  return absl::StrCat("attention ", DtypeName(p.act), " B ", p.B, " T ", p.T, " H ", p.H, "/", p.kv_heads, " D ", p.D,
                      " scale ", p.scale, p.causal ? " causal" : "",
                      p.window > 0 ? absl::StrCat(" window ", p.window) : "", p.documents ? " documents" : "",
                      p.dropout > 0 ? absl::StrCat(" dropout ", p.dropout) : "");
}

absl::StatusOr<Choices> KernelChoices::Choose(ChoiceRule rule) {
  std::unique_ptr<Stopwatch> stopwatch;
  if (rule == ChoiceRule::kFastest) {
    EPS_ASSIGN_OR_RETURN(stopwatch, Stopwatch::New(*runtime_));
  }
  Choices choices;
  for (const SdpaProblem& problem : attention_) {
    const std::string key = KeyOf(problem);
    absl::StatusOr<std::string> algorithm = library_.Algorithm(problem);
    EPS_RETURN_IF_ERROR_WITH(algorithm.status(), key);
    choices[key] = *std::move(algorithm);
  }
  for (const auto& [shape, problem] : surveyed_) {
    const std::string key = KeyOf(shape);
    absl::StatusOr<std::vector<std::string>> algorithms =
        runtime_->MatMulAlgorithms(problem, stopwatch == nullptr ? 1 : kMostTried);
    EPS_RETURN_IF_ERROR_WITH(algorithms.status(), key);
    EPS_CHECK(!algorithms->empty());
    std::string& chosen = choices[key];
    chosen = algorithms->front();
    if (stopwatch == nullptr || algorithms->size() == 1) continue;
    absl::StatusOr<std::string> fastest = Fastest(*runtime_, *stopwatch, problem, *algorithms);
    EPS_RETURN_IF_ERROR_WITH(fastest.status(), key);
    chosen = *std::move(fastest);
  }
  return choices;
}

absl::StatusOr<std::string> KernelChoices::ChosenFor(const std::string& key, const Choices& choices) const {
  const auto chosen = choices.find(key);
  if (chosen != choices.end()) return chosen->second;
  return absl::FailedPreconditionError(
      absl::StrCat("the run's choices for ", runtime_->model(), " have none for ", key));
}

absl::Status KernelChoices::Follow(const Choices& choices) {
  for (const SdpaProblem& problem : attention_) {
    const std::string key = KeyOf(problem);
    EPS_ASSIGN_OR_RETURN(const std::string chosen, ChosenFor(key, choices));
    absl::StatusOr<std::string> mine = library_.Algorithm(problem);
    EPS_RETURN_IF_ERROR_WITH(mine.status(), key);
    if (*mine == chosen) continue;
    return absl::FailedPreconditionError(absl::StrCat("cannot follow the run's choice for ", key, ": it is \"", chosen,
                                                      "\", and this device has \"", *mine, "\""));
  }
  for (const auto& [shape, problem] : surveyed_) {
    const std::string key = KeyOf(shape);
    EPS_ASSIGN_OR_RETURN(const std::string chosen, ChosenFor(key, choices));
    EPS_RETURN_IF_ERROR_WITH(runtime_->UseMatMulAlgorithm(problem, chosen),
                             absl::StrCat("cannot follow the run's choice for ", key));
  }
  follows_ = true;
  return absl::OkStatus();
}

}  // namespace eps::worker::cuda
