#include "bench/timed_device.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "bench/support.h"
#include "common/base/median.h"
#include "nlohmann/json.hpp"

namespace eps::worker {
namespace {

using Clock = std::chrono::steady_clock;

struct Work {
  std::string kernel, shape;
  double operations = 0;
  nlohmann::json product = nullptr;
};

Work WorkOf(const MatMulArgs& a) {
  const std::string form = absl::StrCat(a.trans_a ? "T" : "N", a.trans_b ? "T" : "N");
  std::string shape = absl::StrCat(form, " ", a.M, "x", a.N, "x", a.K);
  if (a.epilogue == MatMulArgs::Epilogue::kActivation) absl::StrAppend(&shape, " activation");
  if (a.epilogue == MatMulArgs::Epilogue::kResidual) absl::StrAppend(&shape, " residual");
  return {.kernel = "product",
          .shape = std::move(shape),
          .operations = 2.0 * static_cast<double>(a.M) * static_cast<double>(a.N) * static_cast<double>(a.K),
          .product = {form, a.M, a.N, a.K}};
}

// Of the two products of a forward pass; half of each where a token sees none behind it.
template <typename Args>
double AttentionOperations(const Args& a) {
  const double pairs = static_cast<double>(a.B * a.H) * static_cast<double>(a.T * a.T) * (a.causal ? 0.5 : 1.0);
  return 2 * 2 * pairs * static_cast<double>(a.D);
}
template <typename Args>
std::string AttentionShape(const Args& a) {
  return absl::StrCat(a.B, "x", a.T, ", ", a.H, " heads of ", a.D);
}
Work WorkOf(const AttentionArgs& a) { return {"attention", AttentionShape(a), AttentionOperations(a)}; }
// Its weights are made again: five products for two.
Work WorkOf(const AttentionBackwardArgs& a) {
  return {"attention backward", AttentionShape(a), 2.5 * AttentionOperations(a)};
}

Work WorkOf(const EmbeddingArgs&) { return {"embedding"}; }
Work WorkOf(const EmbeddingBackwardArgs&) { return {"embedding backward"}; }
Work WorkOf(const LayerNormArgs&) { return {"layer norm"}; }
Work WorkOf(const LayerNormApplyArgs&) { return {"layer norm again"}; }
Work WorkOf(const LayerNormBackwardArgs&) { return {"layer norm backward"}; }
Work WorkOf(const RmsNormArgs&) { return {"rms norm"}; }
Work WorkOf(const RmsNormApplyArgs&) { return {"rms norm again"}; }
Work WorkOf(const RmsNormBackwardArgs&) { return {"rms norm backward"}; }
Work WorkOf(const ActivationBackwardArgs&) { return {"activation backward"}; }
Work WorkOf(const SwigluArgs&) { return {"swiglu"}; }
Work WorkOf(const SwigluBackwardArgs&) { return {"swiglu backward"}; }
Work WorkOf(const RouteArgs&) { return {"routing"}; }
Work WorkOf(const RouteBackwardArgs&) { return {"routing backward"}; }
Work WorkOf(const GatherRowsArgs&) { return {"rows to experts"}; }
Work WorkOf(const SumRowsArgs&) { return {"rows of experts summed"}; }
Work WorkOf(const ExpertMatMulArgs& a) {
  return {.kernel = "product by expert",
          .shape = absl::StrCat(a.trans_b ? "NT" : "NN", " ", a.E, " of ", a.R, "x", a.N, "x", a.K),
          .operations = 2.0 * static_cast<double>(a.R) * static_cast<double>(a.N) * static_cast<double>(a.K)};
}
Work WorkOf(const ExpertGradientArgs& a) {
  return {.kernel = "gradient by expert",
          .shape = absl::StrCat(a.E, " of ", a.M, "x", a.N, "x", a.R),
          .operations = 2.0 * static_cast<double>(a.R) * static_cast<double>(a.M) * static_cast<double>(a.N)};
}
Work WorkOf(const RotaryArgs&) { return {"rotary"}; }
Work WorkOf(const DropoutArgs&) { return {"dropout"}; }
Work WorkOf(const ColumnSumArgs& a) { return {"bias gradient", absl::StrCat(a.M, "x", a.N)}; }
Work WorkOf(const SoftmaxChunkArgs& a) { return {"softmax of the logits", absl::StrCat(a.M, "x", a.chunk)}; }
Work WorkOf(const SoftmaxChunkBackwardArgs& a) {
  return {"softmax of the logits, backward", absl::StrCat(a.M, "x", a.chunk)};
}
Work WorkOf(const LossArgs&) { return {"loss"}; }
Work WorkOf(const ScoreSequencesArgs&) { return {"scores of sequences"}; }
Work WorkOf(const PreferenceLossArgs&) { return {"preference loss"}; }
Work WorkOf(const WidenArgs&) { return {"weights widened"}; }
Work WorkOf(const DequantizeArgs&) { return {"weights dequantized"}; }
Work WorkOf(const FinishLeafArgs&) { return {"gradient looked through"}; }
Work WorkOf(const AddGradientArgs&) { return {"gradients added"}; }
Work WorkOf(const EmitGradientArgs&) { return {"gradient emitted"}; }
Work WorkOf(const FillZeroArgs&) { return {"zeros"}; }

class TimedKernels : public Kernels {
 public:
  TimedKernels(Kernels& kernels, Stream& stream) : kernels_(kernels), stream_(stream) {}

#define EPS_TIMED(Name)                                \
  void Name(const Name##Args& args) override {         \
    Timed(WorkOf(args), [&] { kernels_.Name(args); }); \
  }
  EPS_TIMED(MatMul)
  EPS_TIMED(Embedding)
  EPS_TIMED(EmbeddingBackward)
  EPS_TIMED(LayerNorm)
  EPS_TIMED(LayerNormApply)
  EPS_TIMED(LayerNormBackward)
  EPS_TIMED(RmsNorm)
  EPS_TIMED(RmsNormApply)
  EPS_TIMED(RmsNormBackward)
  EPS_TIMED(Attention)
  EPS_TIMED(AttentionBackward)
  EPS_TIMED(ActivationBackward)
  EPS_TIMED(Swiglu)
  EPS_TIMED(SwigluBackward)
  EPS_TIMED(Route)
  EPS_TIMED(RouteBackward)
  EPS_TIMED(GatherRows)
  EPS_TIMED(SumRows)
  EPS_TIMED(ExpertMatMul)
  EPS_TIMED(ExpertGradient)
  EPS_TIMED(Rotary)
  EPS_TIMED(ColumnSum)
  EPS_TIMED(SoftmaxChunk)
  EPS_TIMED(SoftmaxChunkBackward)
  EPS_TIMED(Loss)
  EPS_TIMED(ScoreSequences)
  EPS_TIMED(PreferenceLoss)
  EPS_TIMED(Widen)
  EPS_TIMED(Dequantize)
  EPS_TIMED(FinishLeaf)
  EPS_TIMED(AddGradient)
  EPS_TIMED(EmitGradient)
  EPS_TIMED(FillZero)
#undef EPS_TIMED
  void ApplyDropout(const DropoutArgs& args) override {
    Timed(WorkOf(args), [&] { kernels_.ApplyDropout(args); });
  }

  // Once the stream is idle.
  void Write(const std::string& path) const {
    nlohmann::json rows = nlohmann::json::array();
    for (const auto& [key, all] : times_) {
      const double seconds = std::accumulate(all.seconds.begin(), all.seconds.end(), 0.0);
      nlohmann::json row = {{"kernel", all.work.kernel},
                            {"shape", all.work.shape},
                            {"calls", all.seconds.size()},
                            {"seconds", seconds},
                            {"median_seconds", Median(all.seconds)},
                            {"operations", all.work.operations}};
      if (!all.work.product.is_null()) row["product"] = all.work.product;
      rows.push_back(std::move(row));
    }
    std::sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a["seconds"] > b["seconds"]; });
    std::ofstream(path) << rows.dump() << "\n";
  }

 private:
  struct Times {
    Work work;
    std::vector<double> seconds;  // of each call
  };

  template <typename Launch>
  void Timed(Work work, const Launch& launch) {
    Times& times = times_[absl::StrCat(work.kernel, " ", work.shape)];  // a map's values stay where they are
    times.work = std::move(work);
    stream_.HostCall([this] {
      begin_ = Clock::now();
      return absl::OkStatus();
    });
    launch();
    stream_.HostCall([this, &times] {
      times.seconds.push_back(std::chrono::duration<double>(Clock::now() - begin_).count());
      return absl::OkStatus();
    });
  }

  Kernels& kernels_;
  Stream& stream_;
  std::map<std::string, Times> times_;  // entries are made by who enqueues; `seconds` are the stream's
  Clock::time_point begin_;             // the stream's
};

class TimedDevice : public Device {
 public:
  TimedDevice(std::unique_ptr<Device> device, std::string path)
      : path_(std::move(path)),
        device_(std::move(device)),
        kernels_(device_->kernels(), device_->stream(StreamId::kCompute)) {}
  ~TimedDevice() override {
    device_->stream(StreamId::kCompute).Synchronize().IgnoreError();
    kernels_.Write(path_);
    device_.reset();
  }

  const DeviceProperties& properties() const override { return device_->properties(); }
  int64_t arena_bytes() const override { return device_->arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override { return device_->Address(span); }
  int64_t arena_high_water_bytes() const override { return device_->arena_high_water_bytes(); }
  int64_t outside_bytes() const override { return device_->outside_bytes(); }
  absl::StatusOr<HostMemory> NewHostMemory(int64_t num_bytes) override { return device_->NewHostMemory(num_bytes); }
  void ExpectCopiesFrom(absl::Span<const std::byte> host) override { device_->ExpectCopiesFrom(host); }
  void ExpectCopiesTo(absl::Span<std::byte> host) override { device_->ExpectCopiesTo(host); }
  Stream& stream(StreamId id) override { return device_->stream(id); }
  std::unique_ptr<Event> NewEvent() override { return device_->NewEvent(); }
  Kernels& kernels() override { return kernels_; }
  Kernels* survey() override { return device_->survey(); }
  absl::StatusOr<Choices> Choose(ChoiceRule rule) override { return device_->Choose(rule); }
  absl::Status Follow(const Choices& choices) override { return device_->Follow(choices); }
  void Recover() override { device_->Recover(); }

 private:
  const std::string path_;
  std::unique_ptr<Device> device_;
  TimedKernels kernels_;
};

}  // namespace

std::unique_ptr<Device> NewTimedDevice(std::unique_ptr<Device> device, std::string path) {
  return std::make_unique<TimedDevice>(std::move(device), std::move(path));
}

}  // namespace eps::worker
