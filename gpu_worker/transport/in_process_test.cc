#include "gpu_worker/transport/in_process.h"

#include <cstring>
#include <thread>

#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/testing/status_matchers.h"

namespace eps::worker {
namespace {

ModelSpec Model() {
  return BuildModel({.num_layers = 1, .d_model = 8, .num_heads = 2, .context = 4, .vocab = 5}).value();
}

Contribution MakePart(const ModelSpec& model, BlobId blob, TreeNode node, ChunkRange chunks, float value) {
  auto values = std::make_shared<std::vector<float>>(static_cast<size_t>(model.blob(blob).part_elems(chunks)), value);
  return {.step = StepId(0),
          .blob = blob,
          .use = 0,
          .node = node,
          .chunks = chunks,
          .dtype = Dtype::kF32,
          .payload = absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values->data()), values->size() * 4),
          .owner = values};
}
Contribution Make(const ModelSpec& model, BlobId blob, TreeNode node, float value) {
  return MakePart(model, blob, node, model.blob(blob).all_chunks(), value);
}

TEST(InProcessTransportTest, PullWaitsForItsVersion) {
  const ModelSpec model = Model();
  InProcessStore store(&model, 1, Dtype::kF32);
  InProcessTransport transport(&store);
  const BlobId blob(1);
  const std::vector<float> master(static_cast<size_t>(model.blob(blob).num_elems), 3.5f);
  std::vector<float> got(master.size());
  std::thread publisher([&] { store.Publish(blob, Version(2), master); });
  EXPECT_OK(transport.Pull(blob, Version(2), model.blob(blob).all_chunks(),
                           absl::MakeSpan(reinterpret_cast<std::byte*>(got.data()), got.size() * 4)));
  publisher.join();
  EXPECT_EQ(got, master);
}

TEST(InProcessTransportTest, PullOfAnOverwrittenVersionIsAborted) {
  const ModelSpec model = Model();
  InProcessStore store(&model, 1, Dtype::kF32);
  InProcessTransport transport(&store);
  store.Retire(Version(2));
  EXPECT_THAT(transport.Pull(BlobId(0), Version(2), {0, 1}, {}), StatusIs(absl::StatusCode::kAborted, "overwritten"));
}

TEST(InProcessTransportTest, CancelEndsAWaitingPullAndEverythingLater) {
  const ModelSpec model = Model();
  InProcessStore store(&model, 1, Dtype::kF32);
  InProcessTransport transport(&store);
  std::thread canceller([&] { transport.Cancel(absl::AbortedError("first")); });
  EXPECT_THAT(transport.Pull(BlobId(0), Version(0), {0, 1}, {}), StatusIs(absl::StatusCode::kAborted, "first"));
  canceller.join();
  transport.Cancel(absl::InternalError("second"));
  EXPECT_THAT(transport.Flush(), StatusIs(absl::StatusCode::kAborted, "first"));
}

TEST(InProcessStoreTest, AContributionIsCountedOnceAndAnAncestorReplacesItsDescendants) {
  const ModelSpec model = Model();
  const BlobId blob(1);
  InProcessStore store(&model, 3, Dtype::kF32);
  InProcessTransport transport(&store);
  transport.Push(Make(model, blob, {0, 1}, 1));
  transport.Push(Make(model, blob, {0, 1}, 100));
  EXPECT_THAT(store.UseGradient(StepId(0), blob, 0), StatusIs(absl::StatusCode::kFailedPrecondition, "1 of 3"));
  transport.Push(Make(model, blob, {2, 1}, 4));
  transport.Push(Make(model, blob, {0, 2}, 3));
  transport.Push(Make(model, blob, {1, 1}, 100));
  ASSERT_OK(transport.Flush());
  EXPECT_EQ(store.Held(StepId(0), blob, 0), (std::vector<TreeNode>{{0, 2}, {2, 1}}));
  ASSERT_OK_AND_ASSIGN(const std::vector<float> sum, store.Gradient(StepId(0), blob));
  EXPECT_EQ(sum, std::vector<float>(sum.size(), 7.0f));
}

TEST(InProcessStoreTest, AContributionOfTheWrongShapeFailsTheTransport) {
  const ModelSpec model = Model();
  InProcessStore store(&model, 3, Dtype::kF32);
  InProcessTransport transport(&store);
  transport.Push(Make(model, BlobId(1), {1, 2}, 1));  // {1..2} is no node of the tree over 3
  EXPECT_THAT(transport.Flush(), StatusIs(absl::StatusCode::kInvalidArgument, "{1..2}"));
}

TEST(InProcessTransportTest, APartThatDoesNotExistOrDoesNotFitIsRefused) {
  const ModelSpec model = Model();
  InProcessStore store(&model, 1, Dtype::kF32);
  store.Publish(BlobId(0), Version(0), std::vector<float>(static_cast<size_t>(model.blob(BlobId(0)).num_elems)));
  InProcessTransport transport(&store);
  std::vector<std::byte> place(64);
  EXPECT_THAT(transport.Pull(BlobId(0), Version(0), {1, 1}, absl::MakeSpan(place)),
              StatusIs(absl::StatusCode::kInvalidArgument, "first_chunk: 1"));
  EXPECT_THAT(transport.Pull(BlobId(0), Version(0), {0, 0}, {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "num_chunks: 0"));
  EXPECT_THAT(transport.Pull(BlobId(0), Version(0), {0, 1}, absl::MakeSpan(place)),
              StatusIs(absl::StatusCode::kInvalidArgument, "room for 64 bytes"));
  transport.Push(MakePart(model, BlobId(0), {0, 1}, {}, 1));
  EXPECT_THAT(transport.Flush(), StatusIs(absl::StatusCode::kInvalidArgument, "num_chunks: 0"));
}

TEST(InProcessStoreTest, EachChunkIsHeldForItself) {
  const ModelSpec model =
      BuildModel({.num_layers = 1, .d_model = 8, .num_heads = 2, .context = kChunkElems / 8 + 8, .vocab = 5}).value();
  const BlobId blob(1);  // the positions: a whole chunk and 64 elements
  ASSERT_EQ(model.blob(blob).num_elems, kChunkElems + 64);
  InProcessStore store(&model, 3, Dtype::kF32);
  InProcessTransport transport(&store);
  transport.Push(MakePart(model, blob, {0, 3}, {1, 1}, 8));
  transport.Push(Make(model, blob, {0, 2}, 3));
  EXPECT_EQ(store.Held(StepId(0), blob, 0, 0), (std::vector<TreeNode>{{0, 2}}));
  EXPECT_EQ(store.Held(StepId(0), blob, 0, 1), (std::vector<TreeNode>{{0, 3}}));
  EXPECT_THAT(store.UseGradient(StepId(0), blob, 0),
              StatusIs(absl::StatusCode::kFailedPrecondition, "chunk 0: 2 of 3"));
  transport.Push(MakePart(model, blob, {2, 1}, {0, 1}, 4));
  ASSERT_OK(transport.Flush());
  std::vector<float> want(kChunkElems, 7.0f);
  want.resize(kChunkElems + 64, 8.0f);
  EXPECT_THAT(store.Gradient(StepId(0), blob), IsOkAndHolds(want));
}

}  // namespace
}  // namespace eps::worker
