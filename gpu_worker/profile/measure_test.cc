#include "gpu_worker/profile/measure.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device_backend.h"
#include "gpu_worker/device_registry.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/predict_step.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/step_costs.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

RunConfig Small(ModelFamily family) {
  RunConfig run;
  run.model = {.family = family, .num_layers = 2, .d_model = 64, .num_heads = 4, .context = 32, .vocab = 256};
  if (family == ModelFamily::kLlama) {
    run.model.d_ff = 96;
    run.model.num_kv_heads = 4;
    run.model.d_head = 16;
    run.model.max_positions = 32;
  }
  run.batch = {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 2};
  run.steps = 1;
  return run;
}

TEST(MeasureTest, HowFarItIsRisesFromNothingToNearlyAll) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend backend, FindDevice("cpu"));
  const RunConfig run = Small(ModelFamily::kGpt2);
  std::vector<double> shares;
  std::set<std::string> what;
  ASSERT_OK(MeasureProfile({.run = &run,
                            .backend = &backend,
                            .device = "cpu",
                            .threads = 1,
                            .seconds = 0.001,
                            .on_progress = [&](const std::string& each, double share) {
                              what.insert(each);
                              shares.push_back(share);
                            }}));
  ASSERT_FALSE(shares.empty());
  EXPECT_EQ(shares.front(), 0);
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_GT(shares.back(), 0.95);
  EXPECT_LT(shares.back(), 1);
  EXPECT_THAT(what, ::testing::IsSupersetOf({"forward embedding", "backward h.1", "what is done at once"}));
}

// Figures are a machine's; what is tested is that there is one for everything a plan asks for.
TEST(MeasureTest, EveryFigureOfARunIsMeasured) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend backend, FindDevice("cpu"));
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
      RunConfig run = Small(family);
      run.precision = {.wire = wire, .gradients = wire};
      ASSERT_OK_AND_ASSIGN(
          const Profile profile,
          MeasureProfile({.run = &run, .backend = &backend, .device = "cpu", .threads = 2, .seconds = 0.001}));
      ASSERT_OK_AND_ASSIGN(const ModelSpec model, BuildModel(run.model));
      EXPECT_TRUE(HasExactTimes(profile, model, run, CpuKernelSizes()));
      EXPECT_FALSE(HasExactTimes(NominalProfile("cpu"), model, run, CpuKernelSizes()));
      ASSERT_EQ(profile.layers.size(), 3u);
      for (const LayerTimes& times : profile.layers) {
        EXPECT_GT(times.forward_seconds, 0);
        EXPECT_GT(times.backward_seconds, 0);
        EXPECT_EQ(times.recompute_seconds > 0, times.kind == LayerKind::kBlock);
        EXPECT_EQ(times.expand_seconds > 0, times.kind == LayerKind::kBlock && wire == Dtype::kBf16);
      }
      for (const double figure :
           {profile.gradient_bytes_per_second, profile.in_bytes_per_second, profile.out_bytes_per_second,
            profile.update_bytes_per_second, profile.handover_seconds}) {
        EXPECT_GT(figure, 0);
      }
      for (const auto& row : profile.sharing) {
        for (const double part : row) EXPECT_TRUE(part > 0 && part <= 1) << part;
      }
      const PlanRequest request = {.model = &model, .run = &run, .kernels = CpuKernelSizes(), .profile = &profile};
      ASSERT_OK_AND_ASSIGN(const RelayPlan plan, MakeRelayPlan(request));
      EXPECT_GT(PredictStep(request, plan).timeline.step_seconds, 0);
    }
  }
}

// What leaves of these has more than a push slot's room: it would be written far behind the arena.
TEST(MeasureTest, TablesMayBeLargerThanBlocks) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend backend, FindDevice("cpu"));
  for (const ModelFamily family : {ModelFamily::kGpt2, ModelFamily::kLlama}) {
    RunConfig run = Small(family);
    run.model.vocab = 400'000;
    run.model.tied_head = family == ModelFamily::kGpt2;
    ASSERT_OK_AND_ASSIGN(
        const Profile profile,
        MeasureProfile({.run = &run, .backend = &backend, .device = "cpu", .threads = 2, .seconds = 0.001}));
    EXPECT_GT(profile.gradient_bytes_per_second, 0);
  }
}

// Below the lowest layer that trains there is no backward to measure: a run that trains all is not taken to be free there.
TEST(MeasureTest, AProfileOfAFrozenRunIsNotExactForOneThatTrains) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend backend, FindDevice("cpu"));
  RunConfig run = Small(ModelFamily::kGpt2);
  run.model.freeze = {"transformer.w*"};
  ASSERT_OK_AND_ASSIGN(
      const Profile profile,
      MeasureProfile({.run = &run, .backend = &backend, .device = "cpu", .threads = 2, .seconds = 0.001}));
  ASSERT_OK_AND_ASSIGN(const ModelSpec frozen, BuildModel(run.model));
  EXPECT_TRUE(HasExactTimes(profile, frozen, run, CpuKernelSizes()));
  run.model.freeze = {};
  ASSERT_OK_AND_ASSIGN(const ModelSpec whole, BuildModel(run.model));
  EXPECT_FALSE(HasExactTimes(profile, whole, run, CpuKernelSizes()));
}

// How a device was used while it was measured. Threads: safe.
class DeviceUse {
 public:
  // Of what is copied one way.
  struct Copies {
    int64_t num = 0, batches = 0;  // which are waited for
    // Begun when compute had work, and notes the time in front of it and behind it. Pauses are calls of the host.
    int64_t beside = 0, batches_beside = 0, pauses_beside = 0;
    int64_t too_early = 0;  // begun when compute had been told only some of that
    int64_t in_batch = 0;   // since the last was waited for
  };

  void Visit() {  // of a layer, by compute
    MutexLock lock(mu_);
    visits_ += compute_calls_ == 1 ? 1 : 0;
  }
  void Call(StreamId id) {
    MutexLock lock(mu_);
    if (id == StreamId::kCompute) ++compute_calls_;
    if (id != StreamId::kCompute && IsBeside()) ++Of(id).pauses_beside;
  }
  void Copy(StreamId id) {
    MutexLock lock(mu_);
    Copies& copies = Of(id);
    ++copies.num;
    ++copies.in_batch;
    if (IsBeside()) {
      ++copies.beside;
    } else if (compute_calls_ > 0) {
      ++copies.too_early;
    }
  }
  void Synchronize(StreamId id) {
    MutexLock lock(mu_);
    if (id == StreamId::kCompute) {
      compute_calls_ = visits_ = 0;
    } else if (std::exchange(Of(id).in_batch, 0) > 0) {
      ++Of(id).batches;
      if (IsBeside()) ++Of(id).batches_beside;
    }
  }
  Copies copies(StreamId id) {
    MutexLock lock(mu_);
    return Of(id);
  }

 private:
  bool IsBeside() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return compute_calls_ == 2 && visits_ > 0; }
  Copies& Of(StreamId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return id == StreamId::kIn ? in_ : out_; }

  Mutex mu_;
  // Since compute was waited for: calls of the host, and layers' visits between the first two of them.
  int64_t compute_calls_ ABSL_GUARDED_BY(mu_) = 0, visits_ ABSL_GUARDED_BY(mu_) = 0;
  Copies in_ ABSL_GUARDED_BY(mu_), out_ ABSL_GUARDED_BY(mu_);
};

// Notes what a stream is told. What is copied one way, in or out, it does not copy: such copies take nobody's time.
class WatchedStream : public Stream {
 public:
  WatchedStream(StreamId id, Stream& stream, DeviceUse& use) : id_(id), stream_(stream), use_(use) {}
  void SetLabel(const WorkLabel* label) override {
    if (id_ == StreamId::kCompute) use_.Visit();
    stream_.SetLabel(label);
  }
  void Wait(Event& event, WaitCause cause) override { stream_.Wait(event, cause); }
  void Record(Event& event) override { stream_.Record(event); }
  void CopyIn(void* device, absl::Span<const std::byte> host) override {
    if (id_ == StreamId::kCompute) return stream_.CopyIn(device, host);
    use_.Copy(id_);
  }
  void CopyOut(absl::Span<std::byte> host, const void* device) override {
    if (id_ == StreamId::kCompute) return stream_.CopyOut(host, device);
    use_.Copy(id_);
  }
  void CopyOutTo(std::function<absl::StatusOr<absl::Span<std::byte>>()> destination, const void* device,
                 std::function<absl::Status()> then) override {
    stream_.CopyOutTo(std::move(destination), device, std::move(then));
  }
  void HostCall(std::function<absl::Status()> call) override {
    use_.Call(id_);
    stream_.HostCall(std::move(call));
  }
  void IssueNative(std::function<absl::Status(void*)> issue) override { stream_.IssueNative(std::move(issue)); }
  absl::Status Synchronize() override {
    use_.Synchronize(id_);
    return stream_.Synchronize();
  }
  StreamStats TakeStats() override { return stream_.TakeStats(); }
  void KeepSpans(bool keep) override { stream_.KeepSpans(keep); }

 private:
  const StreamId id_;
  Stream& stream_;
  DeviceUse& use_;
};

class WatchedDevice final : public Device {
 public:
  WatchedDevice(std::unique_ptr<Device> device, DeviceUse& use) : device_(std::move(device)) {
    for (const StreamId id : kStreams) {
      streams_[static_cast<size_t>(id)] = std::make_unique<WatchedStream>(id, device_->stream(id), use);
    }
  }
  const DeviceProperties& properties() const override { return device_->properties(); }
  int64_t arena_bytes() const override { return device_->arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override { return device_->Address(span); }
  int64_t arena_high_water_bytes() const override { return device_->arena_high_water_bytes(); }
  int64_t outside_bytes() const override { return device_->outside_bytes(); }
  absl::StatusOr<HostMemory> NewHostMemory(int64_t num_bytes) override {
    if (!host_memory_.ok()) return host_memory_;
    return device_->NewHostMemory(num_bytes);
  }
  Stream& stream(StreamId id) override { return *streams_[static_cast<size_t>(id)]; }
  std::unique_ptr<Event> NewEvent() override { return device_->NewEvent(); }
  Kernels& kernels() override { return device_->kernels(); }
  void Recover() override { device_->Recover(); }

  // What one gets who asks for memory of the host from now on, if it is not OK.
  void RefuseHostMemory(absl::Status why) { host_memory_ = std::move(why); }

 private:
  const std::unique_ptr<Device> device_;
  absl::Status host_memory_;
  std::array<std::unique_ptr<WatchedStream>, kNumStreams> streams_;
};

// Waiting for a GPU's stream takes as long as some copies do. Where each copy was waited for, the profile of an H200
// had 35 GB/s of a link that gives 55, and copies that cost compute 12%. How often streams are waited for, and what is
// under way when copies begin, is no matter of time. What figures come of it is timed_work_test's, on its own clock.
TEST(MeasureTest, CopiesAreWaitedForOnceABatchAndBegunOneAtATimeWhileComputeIsAtWork) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend cpu, FindDevice("cpu"));
  DeviceUse use;
  DeviceBackend backend = cpu;
  backend.create = [&](const DeviceOptions& options) -> absl::StatusOr<std::unique_ptr<Device>> {
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, cpu.create(options));
    return std::make_unique<WatchedDevice>(std::move(device), use);
  };
  const RunConfig run = Small(ModelFamily::kGpt2);
  ASSERT_OK(MeasureProfile({.run = &run, .backend = &backend, .device = "cpu", .threads = 2, .seconds = 0.01}));
  for (const StreamId way : {StreamId::kIn, StreamId::kOut}) {
    SCOPED_TRACE(StreamName(way));
    const DeviceUse::Copies copies = use.copies(way);
    // Hundreds, as they take no time; but of one where it is asked how many there is time for.
    EXPECT_GE(copies.num, 10 * copies.batches);
    EXPECT_GT(copies.batches_beside, 0);
    EXPECT_EQ(copies.too_early, 0);
    EXPECT_EQ(copies.beside, copies.batches_beside + copies.pauses_beside);  // a pause between each two
  }
}

// RESOURCE_EXHAUSTED tells the user that the device is too small.
TEST(MeasureTest, WhereTheHostHasNoMemoryItIsNotTheDeviceThatIsTooSmall) {
  ASSERT_OK_AND_ASSIGN(const DeviceBackend cpu, FindDevice("cpu"));
  DeviceUse use;
  DeviceBackend backend = cpu;
  backend.create = [&](const DeviceOptions& options) -> absl::StatusOr<std::unique_ptr<Device>> {
    EPS_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, cpu.create(options));
    auto watched = std::make_unique<WatchedDevice>(std::move(device), use);
    watched->RefuseHostMemory(absl::ResourceExhaustedError("the host has no more"));
    return watched;
  };
  const RunConfig run = Small(ModelFamily::kGpt2);
  const MeasureRequest request = {.run = &run, .backend = &backend, .threads = 1, .seconds = 0.01};
  EXPECT_THAT(MeasureProfile(request), StatusIs(absl::StatusCode::kInternal, "the host has no more"));
  backend.create = [](const DeviceOptions&) { return absl::ResourceExhaustedError("the device has no more"); };
  EXPECT_THAT(MeasureProfile(request), StatusIs(absl::StatusCode::kResourceExhausted, "the device has no more"));
}

}  // namespace
}  // namespace eps::worker
