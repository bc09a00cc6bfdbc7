#include "gpu_worker/transport/transport_conformance.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/numeric/bf16.h"
#include "common/numeric/quantized.h"
#include "common/testing/status_matchers.h"

namespace eps::worker {
namespace {

using absl::StatusCode;

constexpr int kVnodes = 4, kWidth = 200;
constexpr BlobId kWte(0);  // three chunks, two uses
constexpr BlobId kWpe(1);  // one chunk, one use

}  // namespace

void TransportConformanceTest::SetUp() {
  const auto model = BuildModel({.num_layers = 1, .d_model = kWidth, .num_heads = 2, .context = 4, .vocab = 3000});
  ASSERT_OK(model);
  model_ = *model;
  ASSERT_EQ(model_.blob(kWte).num_chunks(), 3);
  ASSERT_LT(model_.blob(kWte).chunk_elems(2), kChunkElems);
  ASSERT_EQ(model_.blob(kWte).uses.size(), 2u);
}

void TransportConformanceTest::StartDaemon(Dtype wire_dtype) {
  dtype_ = wire_dtype;
  daemon_ = GetParam().new_daemon({.model = &model_, .virtual_nodes = kVnodes, .wire_dtype = wire_dtype});
}

std::vector<float> TransportConformanceTest::Master(BlobId blob, int64_t version) const {
  std::vector<float> values(model_.blob(blob).num_elems);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>((i + 7 * blob.value() + version) % 251);
  return values;
}

std::vector<float> TransportConformanceTest::Leaf(BlobId blob, int use, int vnode) const {
  std::vector<float> values(model_.blob(blob).num_elems);
  for (size_t i = 0; i < values.size(); ++i) {
    if ((i / kWidth + vnode) % nonzero_rows_ != 0) continue;
    values[i] = static_cast<float>((i + 3 * vnode + 5 * use + blob.value()) % 61) - 30;
  }
  return values;
}

std::vector<std::byte> TransportConformanceTest::ToWire(absl::Span<const float> values, Dtype dtype) const {
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == Dtype::kF32) {
      std::memcpy(&bytes[i * 4], &values[i], 4);
    } else {
      const Bf16 narrow = ToBf16(values[i]);
      std::memcpy(&bytes[i * 2], &narrow, 2);
    }
  }
  return bytes;
}

Contribution TransportConformanceTest::Make(StepId step, BlobId blob, int use, TreeNode node, Dtype dtype,
                                            std::atomic<bool>* released) const {
  return MakePart(step, blob, use, node, dtype, model_.blob(blob).all_chunks(), released);
}

Contribution TransportConformanceTest::MakePart(StepId step, BlobId blob, int use, TreeNode node, Dtype dtype,
                                                ChunkRange chunks, std::atomic<bool>* released) const {
  std::vector<float> sum = Leaf(blob, use, node.first);
  for (int vnode = node.first + 1; vnode < node.end(); ++vnode) {
    const std::vector<float> leaf = Leaf(blob, use, vnode);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += leaf[i];
  }
  const absl::Span<const float> part =
      absl::MakeConstSpan(sum).subspan(static_cast<size_t>(model_.blob(blob).part_first_elem(chunks)),
                                       static_cast<size_t>(model_.blob(blob).part_elems(chunks)));
  auto* bytes = new std::vector<std::byte>(ToWire(part, dtype));
  std::shared_ptr<void> owner(bytes, [released](std::vector<std::byte>* memory) {
    std::fill(memory->begin(), memory->end(), std::byte{0xee});  // whoever still reads it reads nonsense
    delete memory;
    if (released != nullptr) *released = true;
  });
  return {.step = step,
          .blob = blob,
          .use = use,
          .node = node,
          .chunks = chunks,
          .dtype = dtype,
          .payload = *bytes,
          .owner = owner};
}

absl::StatusOr<std::vector<std::byte>> TransportConformanceTest::PullBytes(Transport& transport, BlobId blob,
                                                                           Version version) const {
  return PullPart(transport, blob, version, model_.blob(blob).all_chunks());
}

absl::StatusOr<std::vector<std::byte>> TransportConformanceTest::PullPart(Transport& transport, BlobId blob,
                                                                          Version version, ChunkRange chunks,
                                                                          PullTiming* timing) const {
  // What lies around the destination stays as it is.
  constexpr size_t kAround = 256;
  const std::vector<std::byte> around(kAround, std::byte{0xcd});
  const size_t num_bytes = static_cast<size_t>(model_.blob(blob).part_bytes(chunks, dtype_));
  std::vector<std::byte> memory(num_bytes + 2 * kAround, std::byte{0xcd});
  std::fill_n(memory.begin() + kAround, num_bytes, std::byte{0xab});
  const auto begin = std::chrono::steady_clock::now();
  const auto pulled = transport.Pull(blob, version, chunks, absl::MakeSpan(memory).subspan(kAround, num_bytes));
  if (!pulled.ok()) return pulled.status();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_TRUE(std::equal(around.begin(), around.end(), memory.begin()));
  EXPECT_TRUE(std::equal(around.begin(), around.end(), memory.end() - kAround));
  std::vector<std::byte> bytes(memory.begin() + kAround, memory.end() - kAround);
  EXPECT_GE(pulled->version_wait_seconds, 0);
  EXPECT_LE(pulled->version_wait_seconds, took.count());
  if (timing != nullptr) *timing = *pulled;
  return bytes;
}

std::vector<float> TransportConformanceTest::ExpectedGradient(BlobId blob) const {
  std::vector<float> sum(model_.blob(blob).num_elems, 0.f);
  for (size_t use = 0; use < model_.blob(blob).uses.size(); ++use) {
    for (int vnode = 0; vnode < kVnodes; ++vnode) {
      const std::vector<float> leaf = Leaf(blob, static_cast<int>(use), vnode);
      for (size_t i = 0; i < sum.size(); ++i) sum[i] += leaf[i];
    }
  }
  return sum;
}

TEST_P(TransportConformanceTest, AQuantizedBlobIsPulledInItsOwnBytesWholeAndInParts) {
  constexpr BlobId kQuantized(3);  // two chunks
  ModelConfig config = model_.config;
  config.freeze = {"transformer.h.*"};
  for (const QuantizedFormat format : {QuantizedFormat::kMxInt8, QuantizedFormat::kNf4}) {
    config.frozen_format = format;
    ASSERT_OK_AND_ASSIGN(model_, BuildModel(config));
    const BlobSpec& blob = model_.blob(kQuantized);
    ASSERT_TRUE(blob.is_quantized());
    ASSERT_EQ(blob.num_chunks(), 2);
    std::vector<std::byte> whole(static_cast<size_t>(QuantizedBytes(format, blob.num_elems)));
    EncodeQuantized(format, Master(kQuantized, 0), 0, blob.num_elems, whole.data());
    const int64_t first_bytes = QuantizedBytes(format, kQuantizedRunElems);
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
      StartDaemon(dtype);
      const auto transport = daemon_->NewTransport();
      daemon_->Publish(kQuantized, Version(0), Master(kQuantized, 0));
      EXPECT_THAT(PullBytes(*transport, kQuantized, Version(0)), IsOkAndHolds(whole));
      EXPECT_THAT(PullPart(*transport, kQuantized, Version(0), {0, 1}),
                  IsOkAndHolds(std::vector<std::byte>(whole.begin(), whole.begin() + first_bytes)));
      EXPECT_THAT(PullPart(*transport, kQuantized, Version(0), {1, 1}),
                  IsOkAndHolds(std::vector<std::byte>(whole.begin() + first_bytes, whole.end())));
    }
  }
}

TEST_P(TransportConformanceTest, APullGivesTheBytesOfItsVersion) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    StartDaemon(dtype);
    const auto transport = daemon_->NewTransport();
    for (int64_t version = 0; version < 2; ++version) {
      for (const BlobId blob : {kWte, kWpe}) daemon_->Publish(blob, Version(version), Master(blob, version));
    }
    for (int64_t version = 0; version < 2; ++version) {
      for (const BlobId blob : {kWte, kWpe}) {
        EXPECT_THAT(PullBytes(*transport, blob, Version(version)), IsOkAndHolds(ToWire(Master(blob, version), dtype)));
      }
    }
  }
}

TEST_P(TransportConformanceTest, APullOfAPartGivesTheBytesOfItsChunksAlone) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    StartDaemon(dtype);
    const auto transport = daemon_->NewTransport();
    for (int64_t version = 0; version < 2; ++version) daemon_->Publish(kWte, Version(version), Master(kWte, version));
    const BlobSpec& wte = model_.blob(kWte);
    for (const ChunkRange chunks :
         {ChunkRange{0, 1}, ChunkRange{1, 1}, ChunkRange{2, 1}, ChunkRange{0, 2}, ChunkRange{1, 2}, ChunkRange{0, 3}}) {
      const std::vector<float> master = Master(kWte, 1);
      const auto want = ToWire(absl::MakeConstSpan(master).subspan(static_cast<size_t>(wte.part_first_elem(chunks)),
                                                                   static_cast<size_t>(wte.part_elems(chunks))),
                               dtype);
      EXPECT_THAT(PullPart(*transport, kWte, Version(1), chunks), IsOkAndHolds(want)) << DebugString(chunks);
    }
  }
}

TEST_P(TransportConformanceTest, APullWaitsUntilItsVersionIsPublished) {
  StartDaemon(Dtype::kBf16);
  const auto transport = daemon_->NewTransport();
  std::atomic<bool> published = false;
  std::thread publisher([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    published = true;
    daemon_->Publish(kWpe, Version(0), Master(kWpe, 0));
  });
  EXPECT_THAT(PullBytes(*transport, kWpe, Version(0)), IsOkAndHolds(ToWire(Master(kWpe, 0), dtype_)));
  EXPECT_TRUE(published);
  publisher.join();
}

TEST_P(TransportConformanceTest, AWaitForAVersionIsTold) {
  StartDaemon(Dtype::kBf16);
  const auto transport = daemon_->NewTransport();
  // How soon the daemon hears of a pull is not ours to say: the longer the version takes, the less it matters.
  PullTiming timing;
  double version_seconds = 0.05;
  for (int64_t version = 0; version < 6 && timing.version_wait_seconds < version_seconds / 2; ++version) {
    version_seconds *= 2;
    std::thread publisher([&] {
      std::this_thread::sleep_for(std::chrono::duration<double>(version_seconds));
      daemon_->Publish(kWte, Version(version), Master(kWte, version));
    });
    EXPECT_THAT(PullPart(*transport, kWte, Version(version), model_.blob(kWte).all_chunks(), &timing),
                IsOkAndHolds(ToWire(Master(kWte, version), dtype_)));
    publisher.join();
  }
  EXPECT_GE(timing.version_wait_seconds, version_seconds / 2);
}

TEST_P(TransportConformanceTest, LeavesAndSubtreesAddUpToTheGradient) {
  StartDaemon(Dtype::kBf16);
  daemon_->BeginStep(StepId(0));
  const auto first = daemon_->NewTransport();
  const auto second = daemon_->NewTransport();
  for (const BlobId blob : {kWte, kWpe}) {
    for (size_t use = 0; use < model_.blob(blob).uses.size(); ++use) {
      const int u = static_cast<int>(use);
      first->Push(Make(StepId(0), blob, u, {0, 1}, Dtype::kBf16));
      first->Push(Make(StepId(0), blob, u, {1, 1}, Dtype::kBf16));
      second->Push(Make(StepId(0), blob, u, {2, 2}, Dtype::kF32));
    }
  }
  EXPECT_OK(first->Flush());
  EXPECT_OK(second->Flush());
  EXPECT_THAT(daemon_->Gradient(StepId(0), kWte), IsOkAndHolds(ExpectedGradient(kWte)));
  EXPECT_THAT(daemon_->Gradient(StepId(0), kWpe), IsOkAndHolds(ExpectedGradient(kWpe)));
}

// As of a token table, most of whose rows no token reads.
TEST_P(TransportConformanceTest, GradientsThatAreMostlyZeroAddUp) {
  for (const int nonzero_rows : {2, 40, 1000000}) {
    nonzero_rows_ = nonzero_rows;
    for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
      StartDaemon(dtype);
      daemon_->BeginStep(StepId(0));
      const auto transport = daemon_->NewTransport();
      for (const int use : {0, 1}) {
        for (const int vnode : {0, 1}) transport->Push(Make(StepId(0), kWte, use, {vnode, 1}, dtype));
        transport->Push(Make(StepId(0), kWte, use, {2, 2}, Dtype::kF32));
      }
      EXPECT_OK(transport->Flush());
      EXPECT_THAT(daemon_->Gradient(StepId(0), kWte), IsOkAndHolds(ExpectedGradient(kWte)));
    }
  }
}

TEST_P(TransportConformanceTest, PartsOfThreeMembersAddUpToTheGradient) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kF32}) {
    StartDaemon(dtype);
    daemon_->BeginStep(StepId(0));
    constexpr int kMembers = 3;
    std::vector<std::unique_ptr<Transport>> members;
    for (int member = 0; member < kMembers; ++member) members.push_back(daemon_->NewTransport());
    for (const BlobId blob : {kWte, kWpe}) {
      for (size_t use = 0; use < model_.blob(blob).uses.size(); ++use) {
        for (int member = 0; member < kMembers; ++member) {
          const ChunkRange part = PartOf(model_.blob(blob).num_chunks(), member, kMembers);
          if (part.empty()) continue;
          // A sum, and what is left as leaves.
          const int u = static_cast<int>(use);
          members[member]->Push(MakePart(StepId(0), blob, u, {0, 2}, Dtype::kF32, part));
          for (const int vnode : {2, 3}) {
            members[member]->Push(MakePart(StepId(0), blob, u, {vnode, 1}, dtype, part));
          }
        }
      }
    }
    for (const auto& member : members) EXPECT_OK(member->Flush());
    EXPECT_THAT(daemon_->Gradient(StepId(0), kWte), IsOkAndHolds(ExpectedGradient(kWte)));
    EXPECT_THAT(daemon_->Gradient(StepId(0), kWpe), IsOkAndHolds(ExpectedGradient(kWpe)));
  }
}

TEST_P(TransportConformanceTest, PartsAndWholeBlobsMix) {
  StartDaemon(Dtype::kBf16);
  daemon_->BeginStep(StepId(0));
  auto member = daemon_->NewTransport();
  const auto survivor = daemon_->NewTransport();
  std::atomic<bool> released[3] = {};
  // Of a group only a middle chunk comes; the vnodes are run again, and pushed whole. The parts overlap, too.
  member->Push(MakePart(StepId(0), kWte, 0, {0, 4}, Dtype::kF32, {1, 1}, &released[0]));
  member->Push(MakePart(StepId(0), kWte, 1, {0, 2}, Dtype::kF32, {0, 2}, &released[1]));
  EXPECT_OK(member->Flush());
  survivor->Push(MakePart(StepId(0), kWte, 1, {0, 2}, Dtype::kF32, {1, 2}));
  for (const int vnode : {0, 1}) survivor->Push(Make(StepId(0), kWte, 0, {vnode, 1}, Dtype::kBf16));
  for (const int use : {0, 1}) survivor->Push(Make(StepId(0), kWte, use, {2, 2}, Dtype::kF32));
  EXPECT_OK(survivor->Flush());
  // Nothing of it is missing any more.
  member->Push(MakePart(StepId(0), kWte, 0, {0, 4}, Dtype::kF32, {1, 2}, &released[2]));
  EXPECT_OK(member->Flush());
  member.reset();  // memory is let go at the latest then
  EXPECT_TRUE(released[0] && released[1] && released[2]);
  EXPECT_THAT(daemon_->Gradient(StepId(0), kWte), IsOkAndHolds(ExpectedGradient(kWte)));
}

TEST_P(TransportConformanceTest, AContributionThatComesTwiceIsCountedOnce) {
  StartDaemon(Dtype::kF32);
  daemon_->BeginStep(StepId(0));
  const auto first = daemon_->NewTransport();
  const auto second = daemon_->NewTransport();
  first->Push(Make(StepId(0), kWpe, 0, {0, 2}, Dtype::kF32));
  EXPECT_OK(first->Flush());
  second->Push(Make(StepId(0), kWpe, 0, {0, 2}, Dtype::kF32));
  second->Push(Make(StepId(0), kWpe, 0, {1, 1}, Dtype::kF32));
  EXPECT_OK(second->Flush());
  first->Push(Make(StepId(0), kWpe, 0, {2, 2}, Dtype::kF32));
  EXPECT_OK(first->Flush());
  EXPECT_THAT(daemon_->Gradient(StepId(0), kWpe), IsOkAndHolds(ExpectedGradient(kWpe)));
}

// Memory for gradients under way is bounded: a worker waits for what it has pushed to be let go.
void ExpectSoon(const std::atomic<bool>& released) {
  // Less than what Bazel gives all of a small target.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!released && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  EXPECT_TRUE(released);
}

TEST_P(TransportConformanceTest, MemoryIsLetGoOnceTheDaemonHoldsIt) {
  StartDaemon(Dtype::kBf16);
  daemon_->BeginStep(StepId(0));
  std::atomic<bool> released = false;
  const auto transport = daemon_->NewTransport();
  transport->Push(Make(StepId(0), kWte, 1, {3, 1}, Dtype::kBf16, &released));
  EXPECT_OK(transport->Flush());
  ExpectSoon(released);
}

TEST_P(TransportConformanceTest, FlushOfNothingReturns) {
  StartDaemon(Dtype::kBf16);
  EXPECT_OK(daemon_->NewTransport()->Flush());
}

TEST_P(TransportConformanceTest, CancelEndsAPullThatWaitsAndTheFirstErrorStays) {
  StartDaemon(Dtype::kBf16);
  const auto transport = daemon_->NewTransport();
  std::thread canceller([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    transport->Cancel(absl::AbortedError("the assignment is void"));
  });
  EXPECT_THAT(PullBytes(*transport, kWpe, Version(0)), StatusIs(StatusCode::kAborted, "the assignment is void"));
  canceller.join();
  transport->Cancel(absl::InternalError("something later"));
  daemon_->Publish(kWpe, Version(0), Master(kWpe, 0));
  EXPECT_THAT(PullBytes(*transport, kWpe, Version(0)), StatusIs(StatusCode::kAborted, "the assignment is void"));
  EXPECT_THAT(transport->Flush(), StatusIs(StatusCode::kAborted, "the assignment is void"));
  // Another transport of the same daemon is not touched.
  EXPECT_THAT(PullBytes(*daemon_->NewTransport(), kWpe, Version(0)), IsOk());
}

TEST_P(TransportConformanceTest, CancelLetsGoOfWhatWasPushed) {
  StartDaemon(Dtype::kBf16);
  daemon_->BeginStep(StepId(0));
  std::atomic<bool> before = false, after = false;
  const auto transport = daemon_->NewTransport();
  transport->Push(Make(StepId(0), kWte, 0, {0, 1}, Dtype::kBf16, &before));  // under way, or there already
  transport->Cancel(absl::CancelledError("over"));
  transport->Push(Make(StepId(0), kWte, 0, {1, 1}, Dtype::kBf16, &after));
  EXPECT_THAT(transport->Flush(), StatusIs(StatusCode::kCancelled, "over"));
  ExpectSoon(before);
  ExpectSoon(after);
}

}  // namespace eps::worker
