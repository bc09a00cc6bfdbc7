#include "eps_server/checkpoint/state_capture.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/checkpoint/testing.h"
#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/checkpoint/capture_buffer.h"
#include "eps_server/checkpoint/capture_size.h"
#include "eps_server/checkpoint/testing.h"
#include "eps_server/store/store.h"
#include "eps_server/store/testing.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

// Blocks of two chunks, the others of one.
RunConfig TwoChunkRun(MomentFormat moments) {
  RunConfig run = SmallRun();
  run.precision.moments = moments;
  run.model = {.num_layers = 2, .d_model = 160, .num_heads = 2, .context = 8, .vocab = 256};
  return run;
}

struct CapturedState {
  explicit CapturedState(MomentFormat moments = MomentFormat::kFp32) : run(TwoChunkRun(moments)) {}
  RunConfig run;
  ModelSpec model = BuildModel(run.model).value();
  std::unique_ptr<Store> store = FilledStore(model, run, Version(6), 1);
  std::vector<BlobId> captured;

  StateCapture Capture(CaptureBuffer& buffer) {
    return StateCapture::Create(
               *store, model, Version(6), AllBlobs(model), [this](BlobId b) { captured.push_back(b); }, buffer)
        .value();
  }
  // A chunk as the store has it.
  std::vector<std::byte> Read(const CapturedChunk& chunk) const {
    std::vector<float> master(static_cast<size_t>(chunk.num_elems));
    EXPECT_OK(store->ReadMaster(chunk.blob, Version(6), chunk.first_elem, absl::MakeSpan(master)));
    const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(master.data()), master.size() * 4);
    std::vector<std::byte> state(bytes.begin(), bytes.end());
    for (int which = 0; which < 2; ++which) {
      const std::vector<std::byte> moment = MomentOf(*store, model.blob(chunk.blob), which);
      const auto begin = moment.begin() + MomentBytes(store->moment_format(), chunk.first_elem);
      state.insert(state.end(), begin, begin + MomentBytes(store->moment_format(), chunk.num_elems));
    }
    return state;
  }
};

TEST(StateCaptureTest, EverythingIsCopiedAtOnceWhereItFits) {
  CapturedState f;
  const auto buffer = CaptureBuffer::Create(CaptureBufferBytes(f.model, f.run)).value();
  EXPECT_EQ(buffer->num_bytes(), CaptureBytes(f.model, f.run));
  StateCapture capture = f.Capture(*buffer);
  EXPECT_EQ(capture.front(), nullptr);
  ASSERT_OK(capture.Fill());
  EXPECT_EQ(f.captured, AllBlobs(f.model));
  int64_t num_elems = 0;
  for (; capture.front() != nullptr; capture.Pop()) num_elems += capture.front()->num_elems;
  EXPECT_EQ(num_elems, f.model.num_elems());
}

class CaptureMomentsTest : public ::testing::TestWithParam<MomentFormat> {};
INSTANTIATE_TEST_SUITE_P(Format, CaptureMomentsTest,
                         ::testing::Values(MomentFormat::kFp32, MomentFormat::kBf16, MomentFormat::kFp8));

TEST_P(CaptureMomentsTest, WhatDoesNotFitIsCopiedInOrderAsRoomComesBack) {
  CapturedState f(GetParam());
  for (const int64_t chunks : {1, 2, 3}) {
    f.captured.clear();
    const auto buffer = CaptureBuffer::Create(chunks * CapturedChunkBytes(2, GetParam(), kChunkElems)).value();
    StateCapture capture = f.Capture(*buffer);
    BlobId last(-1);
    ASSERT_OK(capture.Fill());
    while (capture.front() != nullptr) {
      const CapturedChunk chunk = *capture.front();
      EXPECT_GE(chunk.blob, last);
      last = chunk.blob;
      EXPECT_EQ(reinterpret_cast<uintptr_t>(chunk.state) % 64, 0u);
      const std::vector<std::byte> want = f.Read(chunk);
      EXPECT_EQ(std::memcmp(want.data(), chunk.state, want.size()), 0);
      capture.Pop();
      ASSERT_OK(capture.Fill());
    }
    EXPECT_EQ(f.captured, AllBlobs(f.model));
  }
}

TEST(StateCaptureTest, ABlobIsCapturedOnlyWhenItsLastChunkIsCopied) {
  CapturedState f;
  const auto buffer = CaptureBuffer::Create(12 * kChunkElems).value();
  StateCapture capture = f.Capture(*buffer);
  bool seen = false;
  ASSERT_OK(capture.Fill());
  while (capture.front() != nullptr) {
    const CapturedChunk& chunk = *capture.front();
    const bool whole = chunk.first_elem + chunk.num_elems == f.model.blob(chunk.blob).num_elems;
    // One chunk fits, so its blob is the last that was captured if the chunk ends it.
    const bool captured = std::find(f.captured.begin(), f.captured.end(), chunk.blob) != f.captured.end();
    EXPECT_EQ(captured, whole);
    seen |= !whole;
    capture.Pop();
    ASSERT_OK(capture.Fill());
  }
  EXPECT_TRUE(seen);
}

TEST(StateCaptureTest, AnOrderThatLeavesABlobOutIsRefused) {
  CapturedState f;
  const auto buffer = CaptureBuffer::Create(12 * kChunkElems).value();
  EXPECT_THAT(StateCapture::Create(
                  *f.store, f.model, Version(6), {BlobId(0)}, [](BlobId) {}, *buffer)
                  .status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "order: 1 blobs"));
}

}  // namespace
}  // namespace eps::server
