#include "gpu_worker/device/cuda/checked_attention.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/philox.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/attention.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/device_dropout.h"
#include "gpu_worker/device/cuda/elementwise.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gpu_worker/device/dropout_plan.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker::cuda {
namespace {

// More than a tile of the largest that engines have, 128; and as far from a multiple of 16 bytes as the problem's own.
constexpr int64_t kTokens = 136, kTokensTogether = 8;
constexpr int64_t kMostSequences = 2, kMostKvHeads = 2;
constexpr double kDropped = 0.5;
// Operands of 16 bits make 0.005 of it. Of dropout with a wrong delta it is 0.12 at least, of queries and keys.
constexpr double kFarApart = 0.03;
constexpr int64_t kAlignBytes = 256;

// Of the same kind, and small.
SdpaProblem SmallOf(const SdpaProblem& p) {
  SdpaProblem small = p;
  small.B = std::min(p.B, kMostSequences);
  small.T = kTokens + p.T % kTokensTogether;  // of few tokens gradients may be 0
  small.kv_heads = std::min(p.kv_heads, kMostKvHeads);
  small.H = small.kv_heads * p.sharers();
  small.array_H = small.array_kv_heads = 0;
  if (p.window > 0) small.window = std::min(p.window + 1, small.T / 3);  // of a single column they are, too
  if (p.dropout > 0) small.dropout = kDropped;
  // With another scale the gradients of queries and keys may be all small.
  small.scale = 1 / std::sqrt(static_cast<double>(p.D));
  return small;
}

class LaunchQueue : public KernelQueue {
 public:
  LaunchQueue(GpuRuntime& runtime, GpuStream stream) : runtime_(runtime), stream_(stream) {}
  void Launch(KernelCall call) override { status.Update(runtime_.Launch(stream_, call)); }
  absl::Status status;

 private:
  GpuRuntime& runtime_;
  const GpuStream stream_;
};

// Arrays of a problem with two sets of results: [0] is our own kernel's, [1] the library's. Owns what it takes of the runtime.
class Trial {
 public:
  Trial(GpuRuntime& runtime, const SdpaProblem& problem) : runtime_(runtime), p_(problem) {}
  ~Trial() {
    if (stream_.handle != nullptr) {
      runtime_.Synchronize(stream_).IgnoreError();
      runtime_.DestroyStream(stream_);
    }
    if (memory_ != nullptr) runtime_.Free(memory_);
  }

  absl::Status Prepare() {
    EPS_ASSIGN_OR_RETURN(stream_, runtime_.NewStream());
    const int64_t act_bytes = SizeOf(p_.act);
    const int64_t qkv_bytes = p_.B * p_.T * (p_.H + 2 * p_.kv_heads) * p_.D * act_bytes;
    const int64_t o_bytes = p_.B * p_.T * p_.H * p_.D * act_bytes;
    const int64_t rows_bytes = p_.B * p_.H * p_.T * int64_t{sizeof(float)};
    const KernelSizes sizes = CudaKernelSizes(p_.act);
    const int64_t qkv = Place(qkv_bytes), d_o = Place(o_bytes), delta = Place(rows_bytes);
    const int64_t first = Place(p_.B * p_.T * int64_t{sizeof(int32_t)}),
                  ends = Place(p_.B * p_.T * int64_t{sizeof(int32_t)});
    const int64_t keys = Place(sizeof(DropoutKeyPack::keys));
    const int64_t scratch =
        Place(std::max(sizes.attention(p_.B, p_.T, p_.H, p_.D), sizes.attention_backward(p_.B, p_.T, p_.H, p_.D)));
    for (Result& result : results_) result = {Place(o_bytes), Place(rows_bytes), Place(qkv_bytes)};
    EPS_ASSIGN_OR_RETURN(memory_, runtime_.Allocate(size_));

    std::mt19937 random(1);
    EPS_RETURN_IF_ERROR(PutRandom(random, qkv, qkv_bytes));
    EPS_RETURN_IF_ERROR(PutRandom(random, d_o, o_bytes));
    // The others are written before they are read, by whoever is right.
    for (const Result& result : results_) {
      EPS_RETURN_IF_ERROR(PutRandom(random, result.o, o_bytes));
      EPS_RETURN_IF_ERROR(PutRandom(random, result.dqkv, qkv_bytes));
    }
    EPS_RETURN_IF_ERROR(PutDocuments(first, ends));
    qkv_ = At(qkv), d_o_ = At(d_o), delta_ = At(delta), scratch_ = At(scratch);
    if (p_.documents) {
      documents_ = {.first = static_cast<const int32_t*>(At(first)), .end = static_cast<const int32_t*>(At(ends))};
    }
    const DropoutPlan plan = PlanDropout({.rate = p_.dropout});
    if (!plan.on) return absl::OkStatus();
    auto* key = static_cast<PhiloxKey*>(At(keys));
    dropout_ = {.on = true, .key = key, .drop_up_to = plan.drop_up_to, .keep_scale = plan.keep_scale};
    return runtime_.Launch(stream_, SetDropoutKeys({.keys = {plan.key}, .count = 1}, key));
  }

  absl::Status RunOurs() {
    LaunchQueue queue(runtime_, stream_);
    const Result& to = results_[0];
    PlainAttention(queue, p_.act,
                   {.B = p_.B,
                    .T = p_.T,
                    .H = p_.H,
                    .kv_heads = p_.kv_heads,
                    .D = p_.D,
                    .qkv = qkv_,
                    .o = At(to.o),
                    .lse = static_cast<float*>(At(to.lse)),
                    .scale = p_.scale,
                    .causal = p_.causal,
                    .window = p_.window,
                    .documents = documents_,
                    .scratch = scratch_},
                   dropout_);
    PlainAttentionBackward(queue, p_.act,
                           {.B = p_.B,
                            .T = p_.T,
                            .H = p_.H,
                            .kv_heads = p_.kv_heads,
                            .D = p_.D,
                            .qkv = qkv_,
                            .o = At(to.o),
                            .lse = static_cast<const float*>(At(to.lse)),
                            .d_o = d_o_,
                            .dqkv = At(to.dqkv),
                            .scale = p_.scale,
                            .causal = p_.causal,
                            .window = p_.window,
                            .documents = documents_,
                            .scratch = scratch_},
                           dropout_);
    return queue.status;
  }
  absl::Status RunLibrarys() {
    const Result& to = results_[1];
    const SdpaArrays arrays = {.qkv = qkv_,
                               .o = At(to.o),
                               .lse = static_cast<float*>(At(to.lse)),
                               .documents = documents_,
                               .dropout = dropout_,
                               .d_o = d_o_,
                               .dqkv = At(to.dqkv),
                               .delta = static_cast<float*>(delta_)};
    EPS_RETURN_IF_ERROR(runtime_.Attention(stream_, p_, arrays));
    return runtime_.AttentionBackward(stream_, p_, arrays);
  }

  absl::StatusOr<CheckedAttention::Distance> Compare() {
    const int64_t rows = p_.B * p_.T, o = p_.H * p_.D, kv = p_.kv_heads * p_.D;
    EPS_ASSIGN_OR_RETURN(const std::vector<double> of_o, DistancesOf(results_[0].o, results_[1].o, rows, {o}));
    EPS_ASSIGN_OR_RETURN(const std::vector<double> of_qkv,
                         DistancesOf(results_[0].dqkv, results_[1].dqkv, rows, {o, kv, kv}));
    return CheckedAttention::Distance{.output = of_o[0], .queries = of_qkv[0], .keys = of_qkv[1], .values = of_qkv[2]};
  }

 private:
  // Offsets in the memory.
  struct Result {
    int64_t o = 0, lse = 0, dqkv = 0;
  };

  int64_t Place(int64_t num_bytes) {
    const int64_t offset = size_;
    size_ = RoundUp(offset + num_bytes, kAlignBytes);
    return offset;
  }
  void* At(int64_t offset) const { return static_cast<std::byte*>(memory_) + offset; }

  absl::Status Put(int64_t offset, absl::Span<const std::byte> bytes) {
    EPS_RETURN_IF_ERROR(runtime_.CopyIn(stream_, At(offset), bytes));
    return runtime_.Synchronize(stream_);  // the bytes are the caller's
  }
  absl::Status PutRandom(std::mt19937& random, int64_t offset, int64_t num_bytes) {
    std::vector<uint16_t> values(static_cast<size_t>(num_bytes) / sizeof(uint16_t));
    for (uint16_t& value : values) {
      const float x = std::uniform_real_distribution<float>(-1, 1)(random);
      value = p_.act == Dtype::kBf16 ? ToBf16(x).bits : ToFp16(x).bits;
    }
    return Put(offset, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * 2));
  }
  // Of a third of the tokens each, begun at another one in each sequence.
  absl::Status PutDocuments(int64_t first_offset, int64_t end_offset) {
    const int64_t tokens = std::max<int64_t>(1, p_.T / 3);
    std::vector<int32_t> first, end;
    for (int64_t b = 0; b < p_.B; ++b) {
      for (int64_t t = 0; t < p_.T; ++t) {
        const int64_t start = (t + b) / tokens * tokens - b;
        first.push_back(static_cast<int32_t>(std::max<int64_t>(start, 0)));
        end.push_back(static_cast<int32_t>(std::min(start + tokens, p_.T)));
      }
    }
    const auto bytes_of = [](const std::vector<int32_t>& values) {
      return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(int32_t));
    };
    EPS_RETURN_IF_ERROR(Put(first_offset, bytes_of(first)));
    return Put(end_offset, bytes_of(end));
  }
  absl::StatusOr<std::vector<double>> Get(int64_t offset, int64_t num_elems) {
    std::vector<uint16_t> bits(static_cast<size_t>(num_elems));
    EPS_RETURN_IF_ERROR(runtime_.CopyOut(
        stream_, absl::MakeSpan(reinterpret_cast<std::byte*>(bits.data()), bits.size() * sizeof(uint16_t)),
        At(offset)));
    EPS_RETURN_IF_ERROR(runtime_.Synchronize(stream_));
    std::vector<double> values;
    for (const uint16_t each : bits) {
      values.push_back(p_.act == Dtype::kBf16 ? ToFloat(Bf16{each}) : ToFloat(Fp16{each}));
    }
    return values;
  }
  // Of rows that have several parts, of so many columns each: that of each part, over all rows.
  absl::StatusOr<std::vector<double>> DistancesOf(int64_t ours, int64_t librarys, int64_t rows,
                                                  const std::vector<int64_t>& parts) {
    const int64_t num_elems = rows * std::accumulate(parts.begin(), parts.end(), int64_t{0});
    EPS_ASSIGN_OR_RETURN(const std::vector<double> want, Get(ours, num_elems));
    EPS_ASSIGN_OR_RETURN(const std::vector<double> got, Get(librarys, num_elems));
    std::vector<double> apart(parts.size()), size(parts.size());
    size_t at = 0;
    for (int64_t row = 0; row < rows; ++row) {
      for (size_t part = 0; part < parts.size(); ++part) {
        for (int64_t i = 0; i < parts[part]; ++i, ++at) {
          apart[part] += (got[at] - want[at]) * (got[at] - want[at]);
          size[part] += want[at] * want[at];
        }
      }
    }
    for (size_t part = 0; part < parts.size(); ++part) apart[part] = std::sqrt(apart[part] / size[part]);
    return apart;
  }

  GpuRuntime& runtime_;
  const SdpaProblem p_;
  GpuStream stream_;
  void* memory_ = nullptr;
  int64_t size_ = 0;
  Result results_[2];
  void *qkv_ = nullptr, *d_o_ = nullptr, *delta_ = nullptr, *scratch_ = nullptr;
  Documents documents_;
  DeviceDropout dropout_;
};

}  // namespace

absl::StatusOr<CheckedAttention::Distance> CheckedAttention::Measure(GpuRuntime& runtime, const SdpaProblem& problem) {
  Trial trial(runtime, problem);
  EPS_RETURN_IF_ERROR(trial.Prepare());
  EPS_RETURN_IF_ERROR(trial.RunOurs());
  EPS_RETURN_IF_ERROR(trial.RunLibrarys());
  return trial.Compare();
}

double CheckedAttention::Distance::Largest() const {
  double largest = 0;
  for (const double each : {output, queries, keys, values}) {
    if (std::isnan(each)) return each;
    largest = std::max(largest, each);
  }
  return largest;
}

CheckedAttention::Kind CheckedAttention::KindOf(const SdpaProblem& problem) {
  return {.D = problem.D,
          .sharers = problem.sharers(),
          .act = problem.act,
          .causal = problem.causal,
          .window = problem.window > 0,
          .dropout = problem.dropout > 0,
          .documents = problem.documents};
}

bool CheckedAttention::IsBelievedUntried(const SdpaProblem& problem) {
  return problem.window == 0 && problem.dropout == 0 && !problem.documents;
}

bool CheckedAttention::Tries(const SdpaProblem& problem) const {
  return !IsBelievedUntried(problem) && believed_.count(KindOf(problem)) == 0;
}

SdpaProblem CheckedAttention::AsAsked(const SdpaProblem& problem) const {
  SdpaProblem asked = problem;
  const auto found = believed_.find(KindOf(problem));
  if (IsBelievedUntried(problem) || found == believed_.end()) return asked;
  asked.passed_forward = found->second.passed_forward;
  asked.passed_backward = found->second.passed_backward;
  return asked;
}

absl::StatusOr<bool> CheckedAttention::Takes(const SdpaProblem& problem) {
  EPS_ASSIGN_OR_RETURN(const bool takes, runtime_->TakesAttention(problem));
  if (!takes || IsBelievedUntried(problem)) return takes;
  const Kind kind = KindOf(problem);
  auto found = believed_.find(kind);
  if (found == believed_.end()) {
    EPS_ASSIGN_OR_RETURN(const Belief belief, Try(problem));
    found = believed_.emplace(kind, belief).first;
  }
  const Belief& belief = found->second;
  if (!belief.is_right || (belief.passed_forward.empty() && belief.passed_backward.empty())) return belief.is_right;
  return runtime_->TakesAttention(AsAsked(problem));
}

absl::StatusOr<CheckedAttention::Belief> CheckedAttention::Try(const SdpaProblem& problem) {
  const Kind kind = KindOf(problem);
  const std::string what = absl::StrCat("D ", kind.D, kind.causal ? ", causal" : "", kind.window ? ", window" : "",
                                        kind.documents ? ", documents" : "", kind.dropout ? ", dropout" : "");
  SdpaProblem small = SmallOf(problem);
  EPS_ASSIGN_OR_RETURN(bool takes, runtime_->TakesAttention(small));
  if (!takes) return Belief{.is_right = true};  // nothing to tell it by
  std::string otherwise;
  while (takes) {
    EPS_ASSIGN_OR_RETURN(const Distance apart, Measure(*runtime_, small));
    EPS_ASSIGN_OR_RETURN(const std::string algorithm, runtime_->AttentionAlgorithm(small));
    if (apart.Largest() <= kFarApart) {
      LogInfo("attention_checked", {{"attention", what},
                                    {"algorithm", algorithm},
                                    {"apart", apart.Largest()},
                                    {"most", kFarApart},
                                    {"not_taken", otherwise}});
      return Belief{.is_right = true, .passed_forward = small.passed_forward, .passed_backward = small.passed_backward};
    }
    absl::StrAppend(&otherwise, otherwise.empty() ? "" : "; ", algorithm, ": output ", apart.output,
                    " apart, gradients of queries ", apart.queries, ", of keys ", apart.keys, ", of values ",
                    apart.values);
    EPS_ASSIGN_OR_RETURN(const SdpaEngines engines, runtime_->AttentionEngines(small));
    // Gradients are made of the output, so that of a wrong one nothing is known of backward. A NaN is no distance.
    if (apart.output <= kFarApart) {
      small.passed_backward.push_back(engines.backward);
    } else {
      small.passed_forward.push_back(engines.forward);
    }
    EPS_ASSIGN_OR_RETURN(takes, runtime_->TakesAttention(small));
  }
  LogWarning("attention_is_plain_and_slow",
             {{"why", absl::StrCat("the library computes it otherwise than our own kernel: ", what, "; ", otherwise,
                                   "; of at most ", kFarApart)}});
  return Belief{.is_right = false};
}

absl::StatusOr<std::string> CheckedAttention::Algorithm(const SdpaProblem& problem) {
  EPS_ASSIGN_OR_RETURN(const bool takes, Takes(problem));
  if (!takes) return std::string(kPlainAttention);
  return runtime_->AttentionAlgorithm(AsAsked(problem));
}

}  // namespace eps::worker::cuda
