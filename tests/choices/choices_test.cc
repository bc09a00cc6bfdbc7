// Choices that change bits, from the device of one worker through the daemon and its checkpoints to that of another: a
// whole daemon, and workers whose GPUs are emulated and prefer other algorithms.

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"
#include "common/base/long_work.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/choices/choices.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/daemon.h"
#include "gpu_worker/daemon_connections.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/emulator/plain_matmul.h"
#include "gpu_worker/device_backend.h"
#include "gpu_worker/session.h"
#include "gpu_worker/telemetry/worker_page.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_control.h"
#include "gpu_worker/worker_options.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using worker::cuda::EmulatedAlgorithm;
using worker::cuda::SumOrder;
using Algorithms = std::vector<EmulatedAlgorithm>;

constexpr char kRun[] = R"(
model { layers: 1  d_model: 8  heads: 2  context: 4  vocab: 256  init_seed: 1 }
data { path: "text" }
batch { virtual_nodes: 3 }
optimizer { schedule { peak: 0.01 } }
precision { wire: FP32  gradients: FP32 }  # nothing rounds away the last bits of a sum
checkpoint { every_steps: 1  keep: 10 }
transport: GRPC
steps: 4
)";
constexpr int kSteps = 4;
constexpr char kModel[] = "cuda emulated";

const EmulatedAlgorithm kRising = {.name = "rising", .order = SumOrder::kRising};
const EmulatedAlgorithm kFalling = {.name = "falling", .order = SumOrder::kFalling};

worker::DeviceBackend Emulated(const Algorithms& algorithms) {
  return {.kernels = [](Dtype wire) { return worker::cuda::CudaKernelSizes(wire); },
          .create =
              [algorithms](const worker::DeviceOptions& options) {
                return worker::cuda::NewCudaDevice(
                    {.arena_bytes = options.arena_bytes, .act = options.wire},
                    worker::cuda::NewEmulatedRuntime(worker::cuda::GridOrder::kForward, {.algorithms = algorithms}));
              },
          .probe = nullptr,
          .default_memory_bytes = nullptr};
}

// What gpu_worker does, from attach to finish; returns how it ended.
absl::Status Work(const std::string& address, const Algorithms& algorithms) {
  const worker::WorkerOptions options = {.address = address, .device_memory_bytes = 64 << 20};
  const auto page = worker::WorkerPage::Start({});
  if (!page.ok()) return page.status();
  auto answer = worker::GrpcAttach(
      address, {.device_name = "cuda:0", .device_model = kModel, .device_cap_bytes = 64 << 20}, absl::Seconds(10));
  if (!answer.ok()) return answer.status();
  return worker::RunSession(options, Emulated(algorithms), worker::ConnectionsTo(address, worker::NoCredentials),
                            std::get<worker::Attachment>(*std::move(answer)), **page)
      .status;
}

// A run's folder, and daemons that work in it one after the other.
class ChoicesTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text;
    for (int i = 0; i < 200; ++i) text += static_cast<char>('a' + i * i % 23);
    ASSERT_OK(WriteFileAtomically(dir_.File("text"), text));
    ASSERT_OK(WriteFileAtomically(dir_.File("run.textproto"), kRun));
  }

  absl::Status StartDaemon(const std::string& out, int workers, bool resume = false, const char* algorithms = "FIRST") {
    out_ = dir_.File(out);
    auto daemon = server::Daemon::Create({.run_file = dir_.File("run.textproto"),
                                          .overrides = {{"precision.algorithms", algorithms}},
                                          .resume = resume,
                                          .out = out_,
                                          .expected_workers = workers},
                                         start_);
    if (!daemon.ok()) return daemon.status();
    daemon_ = *std::move(daemon);
    return daemon_->Start();
  }
  std::string Address() const {
    return nlohmann::json::parse(ReadFile(out_ + "/endpoints.json").value())["grpc"].get<std::string>();
  }

  // A whole run, or its rest; the bytes of the model at its end, which no failure should print.
  std::string Train(const std::string& out, const std::vector<Algorithms>& workers, bool resume = false,
                    const char* algorithms = "FIRST") {
    EXPECT_OK(StartDaemon(out, static_cast<int>(workers.size()), resume, algorithms));
    std::vector<std::thread> threads;
    for (const Algorithms& each : workers) {
      threads.emplace_back([this, &each] { EXPECT_OK(Work(Address(), each)); });
    }
    EXPECT_OK(daemon_->Wait());
    for (std::thread& thread : threads) thread.join();
    daemon_.reset();
    return ReadFile(Folder(kSteps) + "/model.safetensors").value_or("no model");
  }
  std::string Folder(int step) const { return absl::StrCat(out_, "/checkpoints/step-0000000", step); }
  // As if the daemon had been killed before it wrote them.
  void ForgetCheckpointsAfter(int step) {
    for (int later = step + 1; later <= kSteps; ++later) std::filesystem::remove_all(Folder(later));
  }

  TempDir dir_;
  std::string out_;  // of the newest daemon
  LongWork start_;
  std::unique_ptr<server::Daemon> daemon_;
};

TEST_F(ChoicesTest, WorkersThatPreferOtherAlgorithmsGiveTheBitsOfOne) {
  const Algorithms rises = {kRising, kFalling}, falls = {kFalling, kRising};
  const std::string rising = Train("rising", {rises}), falling = Train("falling", {falls});
  ASSERT_FALSE(rising == falling);  // the choice matters
  // Whichever offers first: all follow it.
  const std::string both = Train("both", {rises, falls, rises});
  EXPECT_TRUE(both == rising || both == falling);
}

TEST_F(ChoicesTest, AResumeKeepsTheChoicesThoughItsWorkerPrefersOthers) {
  const std::string whole = Train("run", {{kRising, kFalling}});
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifest(Folder(2)));
  ASSERT_EQ(manifest.state.choices.size(), 1u);
  const Choices& choices = manifest.state.choices.at(kModel);
  EXPECT_GE(choices.size(), 10u);
  for (const auto& [key, value] : choices) {
    EXPECT_EQ(value, key.starts_with("attention ") ? "plain" : "rising") << key;
  }
  ForgetCheckpointsAfter(2);
  EXPECT_TRUE(Train("run", {{kFalling, kRising}}, /*resume=*/true) == whole);
}

TEST_F(ChoicesTest, AWorkerThatCannotFollowEndsAndNamesWhat) {
  Train("run", {{kRising}});
  ForgetCheckpointsAfter(2);
  ASSERT_OK(StartDaemon("run", 1, /*resume=*/true));
  const absl::Status ended = Work(Address(), {kFalling});
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kFailedPrecondition, "cannot follow the run's choice for matmul F32["));
  EXPECT_THAT(ended, StatusIs(absl::StatusCode::kFailedPrecondition, "no algorithm \"rising\""));
  // One that can goes on.
  EXPECT_OK(Work(Address(), {kFalling, kRising}));
  EXPECT_OK(daemon_->Wait());
}

TEST_F(ChoicesTest, TheFastestAreTakenWhereTheRunAsksForThem) {
  EmulatedAlgorithm slow = kRising;
  slow.takes = std::chrono::milliseconds(2);
  const std::string falling = Train("falling", {{kFalling}});
  EXPECT_TRUE(Train("fastest", {{slow, kFalling}}, /*resume=*/false, "FASTEST") == falling);
  EXPECT_FALSE(Train("first", {{slow, kFalling}}) == falling);
}

}  // namespace
}  // namespace eps
