#include "gpu_worker/relay/relay_executor.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/model/layer_drop.h"
#include "common/schedule/expert_rows.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/layers/reference_gpt2.h"
#include "gpu_worker/relay/forward_witness.h"
#include "gpu_worker/relay/relay_executor_testing.h"
#include "gpu_worker/transport/in_process.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using ::testing::HasSubstr;

TEST_F(RelayExecutorTest, AStepGivesTheGradientsOfTheWholeModelInFp64) {
  Use(SmallRun());
  // fp32 sums of a few hundred terms: 1e-6 relative, some bits lost in the soft maxima.
  ExpectNearReference(RunStep({}), 1e-5);
}

TEST_F(RelayExecutorTest, DropoutMasksAreThoseOfTheDefinition) {
  RunConfig run = SmallRun();
  run.model.embedding_dropout = 0.1;
  run.model.attention_dropout = 0.2;
  run.model.residual_dropout = 0.3;
  Use(run);
  ExpectNearReference(RunStep({}), 1e-5);
  ExpectNearReference(RunStep({.inner = InnerPolicy::kKeep}), 1e-5);
}

TEST_F(RelayExecutorTest, Bf16GradientsAreThoseOfTheWholeModelUpToTheirRounding) {
  Use(SmallRun(Dtype::kBf16));
  // Each leaf is rounded once, to 8 bits: 2^-9 of each element at most.
  ExpectNearReference(RunStep({}), 1.0 / 512);
}

TEST_F(RelayExecutorTest, Fp16GradientsAreThoseOfTheWholeModelTimesTheLossScale) {
  Use(SmallRun(Dtype::kF16));
  // To 11 bits, and what is below 2^-14 with the scale, to fewer.
  ExpectNearReference(RunStep({}), 1.0 / 2048);
}

TEST_F(RelayExecutorTest, SeveralChunksOfTheVocabularyGiveTheSameGradients) {
  RunConfig run = SmallRun();
  run.model = {.num_layers = 1, .d_model = 8, .num_heads = 2, .context = 5, .vocab = 9001, .init_seed = 1};
  run.batch = {.virtual_nodes = 1, .micro_batches = 1, .micro_batch = 1};
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
    run.precision.wire = wire;
    Use(run);
    ExpectNearReference(RunStep({}), 1e-5);
  }
}

TEST_F(RelayExecutorTest, FrozenTensorsArePushedByNobodyAndChangeNoOtherGradient) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const RunConfig& run : FrozenRuns(dtype)) {
      RunConfig plain = run;
      plain.model.freeze.clear();
      Use(plain);
      const StepOutcome of_all = RunStep({});
      const std::map<std::string, std::vector<float>> all = ByTensor(of_all);
      Use(run);
      const StepOutcome outcome = RunStep({});
      const std::map<std::string, std::vector<float>> trained = ByTensor(outcome);
      EXPECT_LT(trained.size(), all.size());
      for (const auto& [name, gradient] : trained) {
        const std::vector<float>& want = all.at(name);
        ASSERT_EQ(gradient.size(), want.size()) << name;
        EXPECT_EQ(std::memcmp(gradient.data(), want.data(), want.size() * sizeof(float)), 0)
            << name << " frozen: " << run.model.freeze[0];
      }
      for (const auto& [vnode, record] : outcome.records) EXPECT_EQ(record.loss_sum, of_all.records.at(vnode).loss_sum);
      EXPECT_LE(outcome.pushes, of_all.pushes);
    }
  }
}

// A step computes with the values that the format has, and with nothing else.
TEST_F(RelayExecutorTest, AQuantizedModelHasTheGradientsOfOneThatWasRoundedBefore) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const RunConfig& run : QuantizedRuns(dtype)) {
      Use(run);
      std::map<std::string, std::vector<float>> rounded;
      for (const BlobSpec& blob : model_.blobs) {
        for (const TensorSpec& tensor : blob.tensors) {
          const float* values = masters_[static_cast<size_t>(blob.id.value())].data() + tensor.offset_elems;
          rounded.emplace(tensor.name, std::vector<float>(values, values + tensor.num_elems()));
        }
      }
      const StepOutcome quantized = RunStep({});
      const std::map<std::string, std::vector<float>> gradients = ByTensor(quantized);
      EXPECT_FALSE(gradients.empty());
      RunConfig plain = run;
      plain.model.frozen_format = std::nullopt;
      Use(plain);
      for (const BlobSpec& blob : model_.blobs) {
        for (const TensorSpec& tensor : blob.tensors) {
          const std::vector<float>& values = rounded.at(tensor.name);
          std::copy(values.begin(), values.end(),
                    masters_[static_cast<size_t>(blob.id.value())].begin() + tensor.offset_elems);
        }
      }
      const StepOutcome want = RunStep({});
      EXPECT_EQ(gradients, ByTensor(want));
      for (const auto& [vnode, record] : quantized.records) EXPECT_EQ(record.loss_sum, want.records.at(vnode).loss_sum);
    }
  }
}

// What enters a dropped block enters the one behind it.
TEST_F(RelayExecutorTest, AStepThatDropsBlocksHasTheGradientsOfTheModelWithoutThem) {
  RunConfig run = SmallRun(), shallow = SmallRun();
  run.model.num_layers = 4;
  shallow.model.num_layers = 2;
  UseWithDropped(run, {LayerId(1), LayerId(3)});
  const StepOutcome got = RunStep({});
  std::vector<std::vector<float>> masters = masters_;
  const std::vector<bool> dropped = DroppedBlobs(model_, all_.dropped);
  Use(shallow);
  masters_.clear();
  std::vector<std::vector<std::vector<float>>> gradients;
  for (size_t blob = 0; blob < masters.size(); ++blob) {
    if (dropped[blob]) continue;
    masters_.push_back(std::move(masters[blob]));
    gradients.push_back(got.use_gradients[blob]);
  }
  ExpectSameBits(RunStep({}), {.records = got.records, .use_gradients = gradients}, "two of four blocks");
  EXPECT_EQ(RunStep({}).pulls, got.pulls);
  EXPECT_EQ(RunStep({}).pushes, got.pushes);
}

TEST_F(RelayExecutorTest, OneExecutorRunsStepsWithAndWithoutBlocks) {
  RunConfig run = SmallRun();
  UseWithDropped(run, {LayerId(2)});
  const StepOutcome want = RunStep({});
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {}, *store);
  Assignment whole = all_;
  whole.dropped.clear();
  whole.evaluation_round = 0;
  ASSERT_OK_AND_ASSIGN(const PassResult before, worker.executor->Run(whole));
  ASSERT_OK_AND_ASSIGN(const PassResult step, worker.executor->Run(all_));
  ASSERT_OK_AND_ASSIGN(const PassResult after, worker.executor->Run(whole));
  ASSERT_OK(worker.transport.Flush());
  EXPECT_EQ(step.records[0].loss_sum, want.records.at(0).loss_sum);
  EXPECT_EQ(before.records[0].loss_sum, after.records[0].loss_sum);
  EXPECT_NE(before.records[0].loss_sum, step.records[0].loss_sum);  // an evaluation has all blocks
}

TEST_F(RelayExecutorTest, OtherDroppedLayersThanTheRunsAreRefused) {
  UseWithDropped(SmallRun(), {LayerId(2)});
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {}, *store);
  for (const std::vector<LayerId>& wrong :
       std::vector<std::vector<LayerId>>{{}, {LayerId(1)}, {LayerId(1), LayerId(2)}}) {
    Assignment bad = all_;
    bad.dropped = wrong;
    EXPECT_THAT(worker.executor->Run(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, "depth.drop of the run gives {2}"));
  }
  EXPECT_EQ(store->num_pulls(), 0);
}

// Keeps what comes out of each layer.
class Outputs : public ForwardWitness {
 public:
  using Key = std::tuple<LayerId, int, int>;  // layer, vnode, micro-batch
  void OnForward(StepId step, LayerId layer, int vnode, int micro_batch, absl::Span<const std::byte> output) override {
    EXPECT_EQ(step, kStep);
    const std::string bytes(reinterpret_cast<const char*>(output.data()), output.size());
    EXPECT_TRUE(all.emplace(Key(layer, vnode, micro_batch), bytes).second);
  }
  std::map<Key, std::string> all;
};

TEST_F(RelayExecutorTest, AWitnessSeesWhatEveryLayerMakesOfEveryMicroBatchWhateverThePlan) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
  Use(run);
  for (const std::optional<Dtype> cuda : {std::optional<Dtype>(), std::optional<Dtype>(Dtype::kBf16)}) {
    const StepOutcome unseen = RunStep({.cuda = cuda});
    Outputs want;
    ExpectSameBits(unseen, RunStep({.cuda = cuda, .witness = &want}), "seen");
    EXPECT_EQ(want.all.size(),
              (model_.layers.size() - 1) * static_cast<size_t>(run.batch.virtual_nodes * run.batch.micro_batches));
    const std::vector<Way> ways = {
        {.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = cuda},
        {.weight_slots = 1, .max_pass_vnodes = 1, .own_memory = !cuda.has_value(), .cuda = cuda},
        {.inner = InnerPolicy::kSwap, .weight_slots = 3, .own_memory = !cuda.has_value(), .cuda = cuda},
        {.in_place = true, .cuda = cuda, .workers = {{0, 1}, {2}, {3}}}};
    for (Way way : ways) {
      Outputs got;
      way.witness = &got;
      RunStep(way);
      EXPECT_TRUE(got.all == want.all);
    }
  }
}

// On the emulator: everything of the cuda device but NVIDIA's own calls.
TEST_F(RelayExecutorTest, CudaGivesTheGradientsOfTheWholeModel) {
  RunConfig run = SmallRun();
  run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
  Use(run);
  ExpectNearReference(RunStep({.cuda = Dtype::kF32}), 1e-5);
  // Activations have 8 bits: 2^-9 of each at every rounding, some tens of them on the way through three layers.
  ExpectNearReference(RunStep({.cuda = Dtype::kBf16}), 0.04, 0.004);
  // 11 bits.
  run.precision = {.wire = Dtype::kF16, .gradients = Dtype::kF16};
  Use(run);
  ExpectNearReference(RunStep({.cuda = Dtype::kF16}), 0.005, 0.0005);
}

// The cpu device's gradients are held against PyTorch (tests/reference); the cuda device's against the cpu's.
TEST_F(RelayExecutorTest, OnCudaModelsOfOtherFamiliesHaveTheGradientsOfTheCpu) {
  std::vector<RunConfig> runs = {LlamaRun(Dtype::kF32), ExpertsRun(Dtype::kF32), BertRun(Dtype::kF32),
                                 ClassifierRun(Dtype::kF32)};
  for (RunConfig run : {LlamaRun(Dtype::kF32), BertRun(Dtype::kF32), SmallRun()}) {
    run.model.lora = {.rank = 5, .alpha = 2, .dropout = 0.2};
    if (run.model.family == ModelFamily::kGpt2) run.model.residual_dropout = 0.1;
    runs.push_back(run);
  }
  for (RunConfig& run : runs) {
    for (const auto& [act, tolerance] : {std::pair(Dtype::kF32, 1e-5), std::pair(Dtype::kBf16, 0.06)}) {
      // Of two experts that are nearly as good rounding chooses, and the other one's gradients are others: all of them then.
      if (act == Dtype::kBf16) run.model.experts.per_token = run.model.experts.num;
      Use(run);
      const StepOutcome want = RunStep({});
      const StepOutcome got = RunStep({.cuda = act});
      for (size_t blob = 0; blob < want.use_gradients.size(); ++blob) {
        if (model_.blobs[blob].frozen) continue;
        for (size_t use = 0; use < want.use_gradients[blob].size(); ++use) {
          const std::vector<float>&x = want.use_gradients[blob][use], &y = got.use_gradients[blob][use];
          double error = 0, norm = 0;
          for (size_t i = 0; i < x.size(); ++i) {
            error += (x[i] - y[i]) * (x[i] - y[i]);
            norm += x[i] * x[i];
          }
          EXPECT_GT(norm, 0);
          EXPECT_LE(std::sqrt(error / norm), tolerance) << model_.blobs[blob].name << " use " << use;
        }
      }
    }
  }
}

TEST_F(RelayExecutorTest, PullsAndPushesAreAsManyAsTheScheduleSays) {
  Use(SmallRun(Dtype::kBf16));
  // Layers: embedding (2 blobs), 3 blocks, head (2 blobs). Two slots: all there, two blocks on the way back.
  const StepOutcome relay = RunStep({});
  EXPECT_EQ(relay.pulls, 2 + 3 + 2 + 2);
  EXPECT_EQ(relay.pushes, (2 + 3 + 2) * 4);
  const StepOutcome resident = RunStep({.more_bytes = -1, .resident = true});
  EXPECT_EQ(resident.pulls, 2 + 3 + 2);
  EXPECT_EQ(resident.pushes, 2 + 3 + 2);  // one sum of four vnodes each
}

TEST_F(RelayExecutorTest, OnlyLeavesAreRoundedAndSentInBf16) {
  Use(SmallRun(Dtype::kBf16));
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {.more_bytes = -1}, *store);
  ASSERT_OK(worker.executor->Run(Only(all_, {0, 1, 2})));
  const BlobId blob = model_.layers[1].blobs[0].blob;
  // {0, 1} would be a sum of two: it goes as leaves.
  EXPECT_EQ(store->Held(kStep, blob, 0), (std::vector<TreeNode>{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_THAT(store->HeldDtype(kStep, blob, 0, {0, 1}), IsOkAndHolds(Dtype::kBf16));
  ASSERT_OK(worker.executor->Run(all_));
  EXPECT_EQ(store->Held(kStep, blob, 0), (std::vector<TreeNode>{{0, 4}}));
  EXPECT_THAT(store->HeldDtype(kStep, blob, 0, {0, 4}), IsOkAndHolds(Dtype::kF32));
}

TEST_F(RelayExecutorTest, AFailedPullNamesStepLayerAndDirectionAndTheExecutorGoesOn) {
  Use(SmallRun());
  const StepOutcome want = RunStep({});
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {}, *store);
  const BlobId block = model_.layers[1].blobs[0].blob;
  store->FailPull(block, 0, absl::AbortedError("overwritten"));
  EXPECT_THAT(
      worker.executor->Run(all_),
      StatusIs(absl::StatusCode::kAborted, "step 5, layer h.0, forward: pull of blob h.0, version 5: overwritten"));
  store->FailPull(block, 1, absl::AbortedError("overwritten again"));
  EXPECT_THAT(worker.executor->Run(all_),
              StatusIs(absl::StatusCode::kAborted,
                       "step 5, layer h.0, backward: pull of blob h.0, version 5: overwritten again"));
  const BlobId head = model_.layers.back().blobs[0].blob;
  store->FailPull(head, 0, absl::UnavailableError("gone"));
  EXPECT_THAT(worker.executor->Run(all_), StatusIs(absl::StatusCode::kUnavailable, "layer head, forward"));
  const auto result = worker.executor->Run(all_);
  ASSERT_OK(result);
  StepOutcome outcome;
  for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
  Collect(*store, outcome);
  ExpectSameBits(want, outcome, "after failures");
}

TEST_F(RelayExecutorTest, AnErrorOfAKernelIsToldAsWhatFoundItAndOfWhichStep) {
  Use(SmallRun());
  for (const int64_t good_launches : {0, 40}) {
    std::unique_ptr<InProcessStore> store = NewStore();
    Worker worker(model_, run_, {.cuda = Dtype::kF32, .traits = {.good_launches = good_launches}}, *store);
    const absl::Status status = worker.executor->Run(all_).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    const std::string message(status.message());
    EXPECT_THAT(message, HasSubstr("step 5, layer "));
    EXPECT_THAT(message, HasSubstr("stream: "));
    EXPECT_THAT(message, HasSubstr("found by "));
    EXPECT_THAT(message, HasSubstr("in work that some stream of the GPU had been given before: an emulated fault"));
  }
}

TEST_F(RelayExecutorTest, AWaitForAVersionIsEndedByCancel) {
  Use(SmallRun());
  InProcessStore store(&model_, run_.batch.virtual_nodes, run_.precision.wire);  // no version at all
  Worker worker(model_, run_, {}, store);
  std::thread canceller([&] { worker.transport.Cancel(absl::AbortedError("a new assignment")); });
  EXPECT_THAT(worker.executor->Run(all_), StatusIs(absl::StatusCode::kAborted, "a new assignment"));
  canceller.join();
}

TEST_F(RelayExecutorTest, WaitingForAVersionIsCountedAsThatAndNotAsPulling) {
  Use(SmallRun());
  for (const Way& way : {Way{}, Way{.cuda = Dtype::kF32}}) {
    // How soon the pull begins to wait is not ours to say: the longer the version takes, the less it matters.
    double version_seconds = 0.05, waited_version = 0, waited_pull = 0;
    for (int i = 0; i < 6 && (waited_version < version_seconds / 2 || waited_version < waited_pull); ++i) {
      version_seconds *= 2;
      InProcessStore store(&model_, run_.batch.virtual_nodes, run_.precision.wire);
      Worker worker(model_, run_, way, store);
      std::thread publisher([&] {
        std::this_thread::sleep_for(std::chrono::duration<double>(version_seconds));
        Publish(store);
      });
      const auto result = worker.executor->Run(Only(all_, {0}));
      publisher.join();
      ASSERT_OK(result);
      waited_version = result->compute_wait_seconds[static_cast<size_t>(WaitCause::kVersion)];
      waited_pull = result->compute_wait_seconds[static_cast<size_t>(WaitCause::kPull)];
      EXPECT_LE(waited_version, result->seconds);
    }
    EXPECT_GE(waited_version, version_seconds / 2);
    EXPECT_LE(waited_pull, waited_version);
  }
}

TEST_F(RelayExecutorTest, AGradientThatIsNotFiniteNamesItsVnode) {
  Use(SmallRun());
  // A row of the table so large that logits overflow, and one vnode whose labels count.
  for (int c = 0; c < 24; ++c) masters_[0][static_cast<size_t>(36 * 24 + c)] = c % 2 == 0 ? 3e38f : -3e38f;
  for (VnodeBatch& batch : all_.vnodes) {
    for (int32_t& token : batch.tokens) token %= 36;
    if (batch.vnode != 2) batch.labels.assign(batch.labels.size(), -100);
  }
  for (const int64_t more_bytes : {0, -1}) {
    size_t contributions = 0;  // that name it
    for (const int64_t push_piece_bytes : {RelayExecutor::kPushPieceBytes, int64_t{1}}) {
      std::unique_ptr<InProcessStore> store = NewStore();
      Worker worker(model_, run_, {.more_bytes = more_bytes, .push_piece_bytes = push_piece_bytes}, *store);
      const auto result = worker.executor->Run(all_);
      ASSERT_OK(result);
      for (const VnodeRecord& record : result->records) EXPECT_EQ(record.finite, record.vnode != 2);
      const std::vector<int> vnodes = store->NonFiniteVnodes(kStep);
      EXPECT_FALSE(vnodes.empty());
      EXPECT_EQ(vnodes, std::vector<int>(vnodes.size(), 2));
      if (contributions == 0) contributions = vnodes.size();
      EXPECT_EQ(vnodes.size(), contributions);  // the first piece of each knows it, too
    }
  }
}

TEST_F(RelayExecutorTest, NextTokenLogitsAreTheModelsForEveryLength) {
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
    RunConfig run = SmallRun(wire);
    run.model.residual_dropout = 0.5;  // not used when sampling
    Use(run);
    std::vector<std::vector<double>> masters;
    for (const auto& blob : masters_) masters.emplace_back(blob.begin(), blob.end());
    const ReferenceGpt2 reference(&model_, masters);
    std::unique_ptr<InProcessStore> store = NewStore();
    const auto cuda = std::optional<Dtype>(wire);  // lengths are rounded up, as far as the context
    for (const Way& way : {Way(), Way{.resident = true}, Way{.cuda = cuda}}) {
      Worker worker(model_, run_, way, *store);
      const double bound = way.cuda.has_value() && wire == Dtype::kBf16 ? 5e-2 : 1e-4;
      for (const size_t length : {1u, 2u, 7u, 13u}) {
        const std::vector<int32_t> tokens(all_.vnodes[1].tokens.begin(), all_.vnodes[1].tokens.begin() + length);
        ASSERT_OK_AND_ASSIGN(const std::vector<float> got,
                             worker.executor->NextTokenLogits(ReadVersion(kStep), tokens));
        const std::vector<double> want = reference.NextTokenLogits(tokens);
        ASSERT_EQ(got.size(), want.size());
        for (size_t v = 0; v < got.size(); ++v) EXPECT_LE(std::abs(got[v] - want[v]), bound) << length << " " << v;
      }
    }
  }
}

TEST_F(RelayExecutorTest, OnCudaLengthsOfTextsAreRoundedUpWhichNoLogitSees) {
  RunConfig run = SmallRun();
  run.model = {.num_layers = 1, .d_model = 16, .num_heads = 2, .context = 200, .vocab = 19, .init_seed = 11};
  run.batch = {.virtual_nodes = 1, .micro_batches = 1, .micro_batch = 1};
  Use(run);
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker cpu(model_, run_, {}, *store), cuda(model_, run_, {.cuda = Dtype::kF32}, *store);
  // Memory is laid out for tiles, of which a shorter text has one.
  RunConfig run_in_tiles = run_;
  run_in_tiles.batch.feed_forward_tile = 192;
  Worker cpu_in_tiles(model_, run_in_tiles, {}, *store);
  Worker cuda_in_tiles(model_, run_in_tiles, {.cuda = Dtype::kF32}, *store);
  ASSERT_EQ(cpu.device->properties().length_multiple, 1);
  ASSERT_EQ(cuda.device->properties().length_multiple, 128);
  for (const size_t length : {1u, 127u, 128u, 129u, 190u, 200u}) {
    const std::vector<int32_t> tokens(all_.vnodes[0].tokens.begin(), all_.vnodes[0].tokens.begin() + length);
    ASSERT_OK_AND_ASSIGN(const std::vector<float> want, cpu.executor->NextTokenLogits(ReadVersion(kStep), tokens));
    for (const Worker* worker : {&cuda, &cpu_in_tiles, &cuda_in_tiles}) {
      ASSERT_OK_AND_ASSIGN(const std::vector<float> got, worker->executor->NextTokenLogits(ReadVersion(kStep), tokens));
      for (size_t v = 0; v < want.size(); ++v) EXPECT_LE(std::abs(got[v] - want[v]), 1e-4) << length << " " << v;
    }
  }
}

TEST_F(RelayExecutorTest, AnEvaluationHasTheLossesOfAStepWithoutDropoutAndLeavesNothingBehind) {
  for (const std::optional<Dtype> cuda : {std::optional<Dtype>(), std::optional<Dtype>(Dtype::kBf16)}) {
    RunConfig run = SmallRun(Dtype::kBf16);
    Use(run);
    const StepOutcome want = RunStep({.cuda = cuda});
    run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.2;
    Use(run);
    const StepOutcome trained = RunStep({.cuda = cuda});
    EXPECT_NE(trained.records.at(0).loss_sum, want.records.at(0).loss_sum);
    int64_t correct = 0;
    const std::vector<Way> ways = {
        {.cuda = cuda},
        {.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .threads = 1, .cuda = cuda},
        {.weight_slots = 1, .max_pass_vnodes = 1, .own_memory = !cuda.has_value(), .cuda = cuda},
        {.in_place = true, .cuda = cuda}};
    for (Way way : ways) {
      // As a run has them: a product that the survey did not see would be an error.
      if (cuda.has_value()) way.choices = ChoicesOf(model_, run_, way, ChoiceRule::kFirst);
      std::unique_ptr<InProcessStore> store = NewStore();
      Worker worker(model_, run_, way, *store);
      for (const std::vector<int>& vnodes : {std::vector<int>{0, 1, 2, 3}, {1, 3}, {0}}) {
        Assignment assignment = Only(all_, vnodes);
        assignment.evaluation_round = 2;
        ASSERT_OK_AND_ASSIGN(const PassResult result, worker.executor->Run(assignment));
        ASSERT_EQ(result.records.size(), vnodes.size());
        for (const VnodeRecord& record : result.records) {
          const VnodeRecord& other = want.records.at(record.vnode);
          EXPECT_EQ(std::memcmp(&record.loss_sum, &other.loss_sum, sizeof(double)), 0) << record.vnode;
          EXPECT_EQ(record.counted_tokens, other.counted_tokens);
          EXPECT_EQ(record.correct, other.correct);
          EXPECT_TRUE(record.finite);
          correct += record.correct;
        }
      }
      ASSERT_OK(worker.transport.Flush());
      EXPECT_EQ(store->num_pushes(), 0);
      EXPECT_LE(worker.device->arena_high_water_bytes(), worker.plan.arena_bytes);
      // The step that follows has the bits of one that follows none.
      ASSERT_OK(worker.executor->Run(all_));
      ASSERT_OK(worker.transport.Flush());
      StepOutcome after;
      Collect(*store, after);
      after.records = trained.records;
      ExpectSameBits(after, trained, "after an evaluation");
    }
    EXPECT_GT(correct, 0);
  }
}

TEST_F(RelayExecutorTest, APairIsComparedWithTheModelWithoutItsAdapters) {
  for (const std::optional<Dtype> cuda : {std::optional<Dtype>(), std::optional<Dtype>(Dtype::kF32)}) {
    // Adapters that add nothing: the model is its own reference, and every pair's loss that of z = 0.
    RunConfig run = DpoRun(Dtype::kF32);
    run.preferences.label_smoothing = 0;
    Use(run);
    std::vector<std::vector<float>> masters = masters_;
    for (const BlobSpec& blob : model_.blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        if (tensor.lora != LoraPart::kB) continue;
        const auto first = masters_[static_cast<size_t>(blob.id.value())].begin() + tensor.offset_elems;
        std::fill(first, first + tensor.num_elems(), 0.0f);
      }
    }
    const Way way = {.max_pass_vnodes = 3, .cuda = cuda};
    for (const auto& [vnode, record] : RunStep(way).records) {
      EXPECT_EQ(record.counted_tokens, 2);  // pairs
      EXPECT_NEAR(record.loss_sum, 2 * std::log(2.0), 1e-5) << vnode;
    }
    masters_ = std::move(masters);
    double farthest = 0;
    for (const auto& [vnode, record] : RunStep(way).records) {
      farthest = std::max(farthest, std::abs(record.loss_sum - 2 * std::log(2.0)));
    }
    EXPECT_GT(farthest, 0.1);
  }
}

// What is routed where is held against PyTorch, in tests/system.
TEST_F(RelayExecutorTest, RowsOfExpertsAreToldOfStepsAndOfNoEvaluation) {
  RunConfig run = ExpertsRun(Dtype::kF32);
  run.model.num_layers = 3;
  UseWithDropped(run, {LayerId(2)});
  const LayerDrop drop(model_, run_.layer_drop);
  Assignment whole = all_;
  while (!drop.DroppedIn(whole.step).empty()) whole.step = StepId(whole.step.value() + 1);
  whole.dropped.clear();
  const ToldExperts told = ToldExpertsOf(run_.model, run_.batch.virtual_nodes);
  const auto experts = static_cast<ptrdiff_t>(told.experts);
  std::unique_ptr<InProcessStore> store = NewStore();
  Publish(*store, whole.step);
  Worker worker(model_, run_, {.max_pass_vnodes = 3}, *store);
  // First a step of all blocks, of which nothing is left where the next one leaves a block out.
  for (const Assignment& step : {whole, all_}) {
    ASSERT_OK_AND_ASSIGN(const PassResult result, worker.executor->Run(step));
    ASSERT_EQ(result.records.size(), 4u);
    for (const VnodeRecord& record : result.records) {
      EXPECT_OK(CheckExpertRows(record.expert_rows, told, static_cast<int64_t>(step.vnodes[0].tokens.size())));
      const auto second = record.expert_rows.begin() + experts;
      EXPECT_EQ(std::count(second, second + experts, 0) == experts, !step.dropped.empty());
      EXPECT_LT(std::count(second + experts, record.expert_rows.end(), 0), experts);
    }
  }
  whole.evaluation_round = 0;
  ASSERT_OK_AND_ASSIGN(const PassResult evaluated, worker.executor->Run(whole));
  for (const VnodeRecord& record : evaluated.records) EXPECT_TRUE(record.expert_rows.empty());
  ASSERT_OK(worker.transport.Flush());
}

TEST_F(RelayExecutorTest, NoWitnessSeesAnEvaluation) {
  Use(SmallRun());
  Outputs seen;
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {.witness = &seen}, *store);
  all_.evaluation_round = 0;
  ASSERT_OK(worker.executor->Run(all_));
  EXPECT_TRUE(seen.all.empty());
}

TEST_F(RelayExecutorTest, AnAssignmentThatDoesNotFitTheRunIsRefused) {
  Use(SmallRun());
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {}, *store);
  Assignment bad = all_;
  bad.vnodes[1].tokens[5] = 37;
  EXPECT_THAT(worker.executor->Run(bad), StatusIs(absl::StatusCode::kInvalidArgument, "vnode 1: token 5: id 37"));
  bad = all_;
  bad.vnodes[1].labels.pop_back();
  EXPECT_THAT(worker.executor->Run(bad), StatusIs(absl::StatusCode::kInvalidArgument, "51 labels, want 52"));
  bad = all_;
  bad.vnodes[3].vnode = 4;
  EXPECT_THAT(worker.executor->Run(bad), StatusIs(absl::StatusCode::kInvalidArgument, "vnode 4"));
  EXPECT_THAT(worker.executor->NextTokenLogits(ReadVersion(kStep), {}),
              StatusIs(absl::StatusCode::kInvalidArgument, "0 tokens"));
  EXPECT_EQ(store->num_pulls(), 0);
}

TEST_F(RelayExecutorTest, AnArenaSmallerThanThePlanIsRefused) {
  Use(SmallRun());
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, {}, *store);
  auto device = NewCpuDevice({.arena_bytes = worker.plan.arena_bytes - 1, .threads = 1}).value();
  EXPECT_THAT(RelayExecutor::Create({.model = &model_,
                                     .run = &run_,
                                     .device = device.get(),
                                     .transport = &worker.transport,
                                     .plan = worker.plan}),
              StatusIs(absl::StatusCode::kResourceExhausted, "arena"));
}

}  // namespace
}  // namespace eps::worker
