#include "gpu_worker/session.h"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/choices/choices.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/bare_client.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/daemon_connections.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device_backend.h"
#include "gpu_worker/device_registry.h"
#include "gpu_worker/fake_control.h"
#include "gpu_worker/telemetry/worker_page.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/grpc_control.h"
#include "gpu_worker/transport/in_process.h"
#include "gpu_worker/transport/transport.h"
#include "gpu_worker/worker_options.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using absl::StatusCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

RunConfig TinyRun() {
  RunConfig run;
  run.model = {.num_layers = 1, .d_model = 8, .num_heads = 2, .context = 4, .vocab = 16, .init_seed = 1};
  run.batch = {.virtual_nodes = 1, .micro_batches = 1, .micro_batch = 1};
  run.precision = {.wire = Dtype::kF32, .gradients = Dtype::kF32};
  run.steps = 1;
  return run;
}

// An emulated GPU whose kernel after so many fails, and every call after that.
DeviceBackend GpuThatBreaks(int64_t good_launches) {
  return {.kernels = [](Dtype wire) { return cuda::CudaKernelSizes(wire); },
          .create =
              [good_launches](const DeviceOptions& options) {
                return cuda::NewCudaDevice(
                    {.arena_bytes = options.arena_bytes, .act = options.wire},
                    cuda::NewEmulatedRuntime(cuda::GridOrder::kForward, {.good_launches = good_launches}));
              },
          .probe = nullptr,
          .default_memory_bytes = nullptr};
}

// Whose libraries hold more once they have been used: `later_bytes` from the second time on that it is asked.
class DeviceWhoseLibrariesGrow final : public Device {
 public:
  DeviceWhoseLibrariesGrow(std::unique_ptr<Device> device, int64_t first_bytes, int64_t later_bytes)
      : device_(std::move(device)), outside_bytes_(first_bytes), later_bytes_(later_bytes) {}
  const DeviceProperties& properties() const override { return device_->properties(); }
  int64_t arena_bytes() const override { return device_->arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override { return device_->Address(span); }
  int64_t arena_high_water_bytes() const override { return device_->arena_high_water_bytes(); }
  int64_t outside_bytes() const override { return std::exchange(outside_bytes_, later_bytes_); }
  Stream& stream(StreamId id) override { return device_->stream(id); }
  std::unique_ptr<Event> NewEvent() override { return device_->NewEvent(); }
  Kernels& kernels() override { return device_->kernels(); }
  void Recover() override { device_->Recover(); }

 private:
  const std::unique_ptr<Device> device_;
  mutable int64_t outside_bytes_;
  const int64_t later_bytes_;
};

// Calls `on_pull` first, and fails with what it gives.
class WatchedTransport final : public Transport {
 public:
  WatchedTransport(InProcessStore* store, std::function<absl::Status()> on_pull)
      : transport_(store), on_pull_(std::move(on_pull)) {}
  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                  absl::Span<std::byte> destination) override {
    if (absl::Status status = on_pull_(); !status.ok()) return status;
    return transport_.Pull(blob, version, chunks, destination);
  }
  void Push(Contribution contribution) override { transport_.Push(std::move(contribution)); }
  absl::Status Flush() override { return transport_.Flush(); }
  void Cancel(absl::Status reason) override { transport_.Cancel(std::move(reason)); }

 private:
  InProcessTransport transport_;
  const std::function<absl::Status()> on_pull_;
};

// A session between a fake daemon, whose version 0 is there, and a device.
class SessionTest : public ::testing::Test {
 protected:
  SessionTest() {
    for (size_t blob = 0; blob < model_.blobs.size(); ++blob) {
      const std::vector<float> master(static_cast<size_t>(model_.blobs[blob].num_elems), 0.01f);
      store_.Publish(BlobId(static_cast<int32_t>(blob)), Version(0), master);
    }
    connections_ = {.open_control = [this](const Attachment&,
                                           ControlCallbacks callbacks) -> absl::StatusOr<std::unique_ptr<Control>> {
                      callbacks_ = std::move(callbacks);
                      return std::make_unique<FakeControl>(&said_, std::move(orders_));
                    },
                    .open_transport = [this](const TransportRequest& request) -> absl::StatusOr<NamedTransport> {
                      on_failure_ = request.on_failure;
                      return NamedTransport{.name = "grpc",
                                            .transport = std::make_unique<WatchedTransport>(&store_, on_pull_)};
                    }};
  }

  SessionEnd Run(const DeviceBackend& backend) {
    return RunSession(options_, backend, connections_, attachment_, *page_);
  }
  SessionEnd RunOnCpu() { return Run(*FindDevice("cpu")); }

  void Serve(std::deque<Order> texts) {
    attachment_.serving = true;
    attachment_.serving_version = Version(0);
    orders_ = std::move(texts);
  }
  static Order Text(int64_t id, int num_tokens = 2) {
    return InferOrder{.request_id = id, .tokens = std::vector<int32_t>(static_cast<size_t>(num_tokens), 3)};
  }
  static Order Step() {
    Assignment step{.step = StepId(0), .counted_tokens = 4};
    step.vnodes.push_back({.vnode = 0, .tokens = {1, 2, 3, 4}, .labels = {2, 3, 4, 5}});
    return step;
  }

  std::string Page(const std::string& path) const {
    return AskHttp(page_->address(), "GET " + path + " HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n");
  }

  const RunConfig run_ = TinyRun();
  const ModelSpec model_ = BuildModel(run_.model).value();
  InProcessStore store_{&model_, 1, Dtype::kF32};
  const std::unique_ptr<WorkerPage> page_ = WorkerPage::Start({}).value();
  SaidToDaemon said_;
  WorkerOptions options_ = {.device_memory_bytes = 64 << 20};
  Attachment attachment_ = {.worker_id = WorkerId(1), .incarnation = 7, .run = run_};
  std::deque<Order> orders_;
  std::function<absl::Status()> on_pull_ = [] { return absl::OkStatus(); };
  DaemonConnections connections_;
  // Of the session.
  ControlCallbacks callbacks_;
  std::function<void(absl::Status)> on_failure_;
};

TEST_F(SessionTest, ATextIsAPassOnThePage) {
  Serve({Text(1), Text(2), FinishOrder{.ok = true}});
  std::string meanwhile;
  on_pull_ = [&] {
    meanwhile = Page("/readyz");
    return absl::OkStatus();
  };
  EXPECT_OK(RunOnCpu().status);
  EXPECT_THAT(said_.All(), ElementsAre("ready", "inferred 1: logits", "inferred 2: logits"));
  EXPECT_THAT(meanwhile, HasSubstr("running\n"));
  const std::string page = Page("/metrics");
  EXPECT_THAT(page, HasSubstr("\nworker_passes_total 2\n"));
  EXPECT_THAT(page, HasSubstr("\nworker_phase{phase=\"idle\"} 1\n"));
}

TEST_F(SessionTest, ATextThatMakesNoSenseIsItsOwnErrorAndTheNextOneIsComputed) {
  Serve({Text(1, /*num_tokens=*/5), Text(2), FinishOrder{.ok = true}});
  EXPECT_OK(RunOnCpu().status);
  ASSERT_THAT(said_.All(), ElementsAre("ready", StartsWith("inferred 1: INVALID_ARGUMENT"), "inferred 2: logits"));
  EXPECT_THAT(Page("/metrics"), HasSubstr("\nworker_passes_total 1\n"));
}

TEST_F(SessionTest, AWorkerWhoseDeviceBrokeAnswersAndEnds) {
  Serve({Text(1), Text(2), FinishOrder{.ok = true}});
  const SessionEnd end = Run(GpuThatBreaks(/*good_launches=*/3));
  EXPECT_FALSE(end.status.ok());
  EXPECT_FALSE(end.link_failed);
  EXPECT_TRUE(end.was_open);
  ASSERT_THAT(said_.All(), ElementsAre("ready", StartsWith("inferred 1: "), StartsWith("failed: ")));
  EXPECT_NE(said_.All()[1], "inferred 1: logits");
}

TEST_F(SessionTest, ADaemonThatWasStoppedIsAwayWhereTheWorkerIsToStay) {
  for (const bool until_done : {false, true}) {
    for (const bool run_may_go_on : {false, true}) {
      for (const bool ok : {false, true}) {  // a step was lost, or a signal has come
        orders_ = {FinishOrder{.ok = ok, .run_may_go_on = run_may_go_on}};
        options_.until_done = until_done;
        const SessionEnd end = RunOnCpu();
        EXPECT_EQ(end.daemon_was_stopped, until_done && run_may_go_on);
        EXPECT_EQ(end.status.ok(), ok && !end.daemon_was_stopped);
        EXPECT_FALSE(end.link_failed);
      }
    }
  }
}

TEST_F(SessionTest, WhatLibrariesTakeLaterIsReportedWithThePass) {
  orders_ = {Step(), FinishOrder{.ok = true}};
  options_.hooks.wrap_device = [](std::unique_ptr<Device> device) {
    return std::make_unique<DeviceWhoseLibrariesGrow>(std::move(device), 100, 350);
  };
  EXPECT_OK(RunOnCpu().status);
  ASSERT_THAT(said_.All(), ElementsAre("ready", "pass done"));
  MutexLock lock(said_.mu);
  EXPECT_EQ(said_.ready.device_outside_bytes, 100);
  EXPECT_EQ(said_.passes.front().device_outside_bytes, 350);
  EXPECT_GT(said_.passes.front().device_peak_bytes, 0);
  EXPECT_EQ(said_.passes.front().wait_seconds.size(), 5u);
}

TEST_F(SessionTest, ATransportThatCannotBeOpenedIsTheWorkersOwnError) {
  connections_.open_transport = [](const TransportRequest&) { return absl::FailedPreconditionError("no socket"); };
  const SessionEnd end = RunOnCpu();
  EXPECT_EQ(end.status, absl::FailedPreconditionError("no socket"));
  EXPECT_FALSE(end.link_failed);
  EXPECT_FALSE(end.was_open);
  EXPECT_THAT(said_.All(), ElementsAre("failed: FAILED_PRECONDITION: no socket"));
}

TEST_F(SessionTest, WhatFollowsFromADaemonThatIsGoneIsNotTheCause) {
  connections_.open_transport = [this](const TransportRequest&) {
    callbacks_.on_lost(absl::UnavailableError("the daemon is gone"));
    return absl::FailedPreconditionError("no socket");
  };
  const SessionEnd end = RunOnCpu();
  EXPECT_EQ(end.status, absl::UnavailableError("the daemon is gone"));
  EXPECT_TRUE(end.link_failed);
  EXPECT_FALSE(end.was_open);
}

TEST_F(SessionTest, ADataPlaneThatMakesNoSenseIsTheLinksErrorAndToldToTheDaemon) {
  orders_ = {Step(), FinishOrder{.ok = true}};
  on_pull_ = [this] {
    on_failure_(absl::DataLossError("half a chunk"));
    return absl::DataLossError("half a chunk");
  };
  const SessionEnd end = RunOnCpu();
  EXPECT_EQ(end.status, absl::DataLossError("half a chunk"));
  EXPECT_TRUE(end.link_failed);
  EXPECT_THAT(said_.All(),
              ElementsAre("ready", "failed: DATA_LOSS: half a chunk", "cancelled: DATA_LOSS: half a chunk"));
}

TEST_F(SessionTest, ARunThatDoesNotFitIsReportedAndSaysHowMuchWould) {
  options_.device_memory_bytes = 64;
  const SessionEnd end = RunOnCpu();
  EXPECT_THAT(end.status, StatusIs(StatusCode::kResourceExhausted, "needs at least"));
  EXPECT_FALSE(end.link_failed);
  EXPECT_THAT(said_.All(), ElementsAre(StartsWith("failed: RESOURCE_EXHAUSTED")));
}

}  // namespace
}  // namespace eps::worker
