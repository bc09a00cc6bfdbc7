#include "gpu_worker/device/cuda/compute_graphs.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/spec/graph_use.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/device/cuda/compute_work.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/gpu_runtime.h"
#include "gpu_worker/device/cuda/launch.h"
#include "gpu_worker/device/cuda/matmul_problem.h"
#include "gpu_worker/device/cuda/sdpa_problem.h"
#include "gtest/gtest.h"

namespace eps::worker::cuda {
namespace {

constexpr int kThreads = 32;

struct Step {
  uint32_t by = 1;
  friend bool operator==(const Step&, const Step&) = default;
};

// By each thread. Whatever runs twice, not at all, or in another order gives another number.
void Grow(uint32_t* x, Step step, uint32_t times) { *x = *x * 1664525 + step.by * times; }

class Collector : public KernelQueue {
 public:
  void Launch(KernelCall call) override { segment.push_back(std::move(call)); }
  std::vector<ComputeWork> segment;
};

std::vector<ComputeWork> Segment(uint32_t* x, uint32_t by, int calls = 8, uint32_t times = 1) {
  Collector queue;
  for (int i = 0; i < calls; ++i) {
    Launch(queue, "Grow", {.threads = kThreads}, &Grow, x, Step{by}, times);
  }
  return queue.segment;
}

class ComputeGraphsTest : public ::testing::Test {
 protected:
  void Start(GraphUse use, EmulatedTraits traits = {}) {
    traits.graphs_launched = &launched_;
    runtime_ = NewEmulatedRuntime(GridOrder::kForward, std::move(traits));
    graphs_.emplace(runtime_, use);
    stream_ = runtime_->NewStream().value();
  }
  void TearDown() override {
    if (runtime_ == nullptr) return;
    runtime_->Synchronize(stream_).IgnoreError();
    graphs_.reset();
    runtime_->DestroyStream(stream_);
  }
  // x after the segment was enqueued so many times.
  uint32_t After(int times, const std::vector<ComputeWork>& segment) {
    for (int i = 0; i < times; ++i) EXPECT_OK(graphs_->Enqueue(stream_, segment));
    EXPECT_OK(runtime_->Synchronize(stream_));
    return x_;
  }
  static uint32_t Want(int calls, uint32_t by = 1, uint32_t times = 1, uint32_t x = 0) {
    for (int i = 0; i < calls * kThreads; ++i) Grow(&x, Step{by}, times);
    return x;
  }

  uint32_t x_ = 0, other_ = 0;
  std::atomic<int64_t> launched_{0};
  std::shared_ptr<GpuRuntime> runtime_;
  std::optional<ComputeGraphs> graphs_;
  GpuStream stream_;
};

TEST_F(ComputeGraphsTest, WhatComesAgainIsAGraph) {
  Start(GraphUse::kAlways);
  EXPECT_EQ(After(1, Segment(&x_, 1)), Want(8));
  EXPECT_EQ(launched_, 0);
  EXPECT_EQ(After(3, Segment(&x_, 1)), Want(32));
  EXPECT_EQ(launched_, 3);
}

TEST_F(ComputeGraphsTest, UnlessToldSoOnlyWhatTheGpuWasFoundWaitingIn) {
  Start(GraphUse::kAuto, {.is_reached = false});
  EXPECT_EQ(After(6, Segment(&x_, 1)), Want(48));
  EXPECT_EQ(launched_, 0);
}

TEST_F(ComputeGraphsTest, WhatTheGpuWasFoundWaitingInThreeTimesIsAGraph) {
  Start(GraphUse::kAuto, {.is_reached = true});
  EXPECT_EQ(After(3, Segment(&x_, 1)), Want(24));
  EXPECT_EQ(launched_, 0);
  EXPECT_EQ(After(2, Segment(&x_, 1)), Want(40));
  EXPECT_EQ(launched_, 2);
}

TEST_F(ComputeGraphsTest, NeverIsNever) {
  Start(GraphUse::kNever, {.is_reached = true});
  EXPECT_EQ(After(5, Segment(&x_, 1)), Want(40));
  EXPECT_EQ(launched_, 0);
}

TEST_F(ComputeGraphsTest, AFewCallsAreEnqueuedOneByOne) {
  Start(GraphUse::kAlways);
  EXPECT_EQ(After(6, Segment(&x_, 1, 7)), Want(42));
  EXPECT_EQ(launched_, 0);
}

// An address, a field of a struct, a number, the length.
TEST_F(ComputeGraphsTest, WorkThatDiffersInAnythingIsNotThatOfTheGraph) {
  Start(GraphUse::kAlways);
  EXPECT_EQ(After(2, Segment(&x_, 1)), Want(16));
  EXPECT_EQ(launched_, 1);
  const uint32_t x = After(1, Segment(&other_, 1));
  EXPECT_EQ(other_, Want(8));
  EXPECT_EQ(After(1, Segment(&x_, 3)), Want(8, 3, 1, x));
  x_ = 0;
  EXPECT_EQ(After(1, Segment(&x_, 1, 8, 5)), Want(8, 1, 5));
  x_ = 0;
  EXPECT_EQ(After(1, Segment(&x_, 1, 9)), Want(9));
  EXPECT_EQ(launched_, 1);
  // Each is a graph of its own when it comes again.
  x_ = 0;
  EXPECT_EQ(After(1, Segment(&x_, 3)), Want(8, 3));
  EXPECT_EQ(After(1, Segment(&x_, 1)), Want(8, 1, 1, Want(8, 3)));
  EXPECT_EQ(launched_, 3);
}

TEST_F(ComputeGraphsTest, ProductsAndAttentionAreInItAndCompared) {
  float a = 3, c = 0;
  MatMulProblem product = {.M = 1, .N = 1, .K = 1, .a = &a, .lda = 1, .b = &a, .ldb = 1, .c = &c, .ldc = 1};
  EXPECT_TRUE(ComputeWork(product) == ComputeWork(product));
  const MatMulProblem before = product;
  product.addend = &c;
  EXPECT_FALSE(ComputeWork(product) == ComputeWork(before));
  MatMulProblem scaled = before;
  scaled.scale = 2;
  EXPECT_FALSE(ComputeWork(scaled) == ComputeWork(before));
  EXPECT_NE(HashOf(scaled), HashOf(before));
  AttentionCall call = {.problem = {.B = 1, .T = 2}, .arrays = {.qkv = &a}};
  const AttentionCall forward = call;
  call.is_backward = true;
  EXPECT_FALSE(ComputeWork(call) == ComputeWork(forward));
  EXPECT_FALSE(ComputeWork(call) == ComputeWork(product));

  Start(GraphUse::kAlways);
  const std::vector<ComputeWork> segment(8, product);
  for (int i = 0; i < 4; ++i) ASSERT_OK(graphs_->Enqueue(stream_, segment));
  ASSERT_OK(runtime_->Synchronize(stream_));
  EXPECT_EQ(launched_, 3);
  EXPECT_EQ(c, 4 * 8 * 9);
}

// At its end, or in the middle, as where a library refuses to be captured; nothing of it is left, and it is not tried again.
TEST_F(ComputeGraphsTest, WhereCapturingFailsAllGoesOnCallByCall) {
  const absl::Status refused = absl::InternalError("not in a capture");
  for (const EmulatedTraits& traits :
       {EmulatedTraits{.capture_error = refused}, EmulatedTraits{.captured_call_error = refused}}) {
    Start(GraphUse::kAlways, traits);
    x_ = 0;
    EXPECT_EQ(After(5, Segment(&x_, 1)), Want(40));
    EXPECT_EQ(After(2, Segment(&x_, 3)), Want(16, 3, 1, Want(40)));
    EXPECT_EQ(launched_, 0);
    TearDown();
  }
  runtime_ = nullptr;
}

// The emulator's calls have two nodes each.
TEST_F(ComputeGraphsTest, GraphsHoldNoMoreNodesThanTheyMay) {
  Start(GraphUse::kAlways);
  for (const auto& [by, calls] : std::vector<std::pair<uint32_t, int>>{{1, 1000}, {2, 1000}, {3, 60}, {4, 10}}) {
    x_ = 0;
    launched_ = 0;
    EXPECT_EQ(After(2, Segment(&x_, by, calls)), Want(2 * calls, by));
    EXPECT_EQ(launched_,
              by < 3 ? 1 : 0);  // two have 4000 of 4096; 60 calls would fit, their nodes do not, and then none is made
  }
}

TEST_F(ComputeGraphsTest, AnErrorIsTheStreamsWhetherFoundInACaptureOrAtALaunch) {
  for (const int good_launches : {7, 9, 16}) {  // the last call before the capture, the second within it, and after it
    Start(GraphUse::kAlways, {.good_launches = good_launches});
    absl::Status status;
    for (int i = 0; i < 8 && status.ok(); ++i) {
      status = graphs_->Enqueue(stream_, Segment(&x_, 1));
      if (status.ok()) status = runtime_->Synchronize(stream_);
    }
    EXPECT_EQ(status.ok(), good_launches == 16) << good_launches << ": " << status;  // a graph launches no call
    TearDown();
    runtime_ = nullptr;
  }
}

}  // namespace
}  // namespace eps::worker::cuda
