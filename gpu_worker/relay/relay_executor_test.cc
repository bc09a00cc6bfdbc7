#include "gpu_worker/relay/relay_executor.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/choices/choices.h"
#include "common/ipc/shared_segment.h"
#include "common/model/layer_drop.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/philox.h"
#include "common/schedule/chunk_range.h"
#include "common/spec/graph_use.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_kernel_sizes.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/cuda/emulator/grid.h"
#include "gpu_worker/device/cuda/emulator/plain_matmul.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/group/emulated_nccl.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/group/nccl_group.h"
#include "gpu_worker/group/shared_memory_group.h"
#include "gpu_worker/layers/reference_gpt2.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/relay/device_with_memory_of_its_own.h"
#include "gpu_worker/relay/forward_witness.h"
#include "gpu_worker/transport/in_process.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using ::testing::HasSubstr;

constexpr StepId kStep(5);

// A small run with odd sizes: T, C and the vocabulary are no multiples of any vector.
RunConfig SmallRun(Dtype dtype = Dtype::kF32) {
  RunConfig run;
  run.model = {.num_layers = 3, .d_model = 24, .num_heads = 3, .context = 13, .vocab = 37, .init_seed = 11};
  run.batch = {.virtual_nodes = 4, .micro_batches = 2, .micro_batch = 2};
  run.precision = {.wire = dtype, .gradients = dtype};
  run.relay.inner = InnerPolicy::kRecompute;
  run.steps = 1;
  return run;
}

// Weights large enough that every gradient matters, the same for every test.
std::vector<std::vector<float>> Masters(const ModelSpec& model, Dtype wire) {
  std::vector<std::vector<float>> masters;
  for (const BlobSpec& blob : model.blobs) {
    std::vector<float> values(static_cast<size_t>(blob.num_elems));
    for (TensorSpec tensor : blob.tensors) {
      const bool is_scale = tensor.init == InitRule::kOnes;
      tensor.init = InitRule::kNormal;
      tensor.init_stddev = tensor.shape.size() >= 2 ? 0.2 : 0.1;
      float* out = values.data() + tensor.offset_elems;
      InitTensor(tensor, 3, out);
      for (int64_t i = 0; i < tensor.num_elems(); ++i) {
        if (is_scale) out[i] += 1;
        // The reference sees what is on the wire.
        if (wire == Dtype::kBf16) out[i] = ToFloat(ToBf16(out[i]));
        if (wire == Dtype::kF16) out[i] = ToFloat(ToFp16(out[i]));
      }
    }
    masters.push_back(std::move(values));
  }
  return masters;
}

Assignment MakeAssignment(const RunConfig& run) {
  Assignment assignment{.step = kStep};
  if (run.precision.gradients == Dtype::kF16) assignment.loss_scale = 1024;
  for (int vnode = 0; vnode < run.batch.virtual_nodes; ++vnode) {
    VnodeBatch batch{.vnode = vnode, .tokens = {}, .labels = {}};
    const int64_t n = run.batch.sequences_per_vnode() * run.model.context;
    for (int64_t i = 0; i < n; ++i) {
      const uint64_t bits = Mix64(static_cast<uint64_t>(vnode) * 1000 + static_cast<uint64_t>(i));
      batch.tokens.push_back(static_cast<int32_t>(bits % static_cast<uint64_t>(run.model.vocab)));
      const int64_t place = i % run.model.context, end = run.model.context - vnode;  // of the document; then padding
      if (run.data.has_documents()) batch.document_first.push_back(static_cast<int32_t>(place < end ? 0 : end));
      // One vnode says that all of its types are 0.
      if (run.model.num_types > 0 && vnode != 1) batch.types.push_back(static_cast<int32_t>((bits >> 20) % 2));
      if (run.model.is_classifier() && place != 0) continue;
      const bool counted = (bits >> 32) % 5 != 0;
      const auto label = static_cast<int32_t>((bits >> 40) % static_cast<uint64_t>(run.model.num_outputs()));
      batch.labels.push_back(counted ? label : kNotCounted);
      assignment.counted_tokens += counted ? 1 : 0;
    }
    assignment.vnodes.push_back(std::move(batch));
  }
  return assignment;
}

Assignment Only(const Assignment& all, const std::vector<int>& vnodes) {
  Assignment some{.step = all.step, .counted_tokens = all.counted_tokens};
  some.loss_scale = all.loss_scale;
  some.dropped = all.dropped;
  for (const int v : vnodes) some.vnodes.push_back(all.vnodes[static_cast<size_t>(v)]);
  return some;
}

// Memory as a daemon shares it: written here, and mapped once more for the worker, whose device may take the permission
// to write from its pages.
class SharedPlace {
 public:
  explicit SharedPlace(int64_t num_bytes)
      : written_(SharedSegment::Create("test", num_bytes, SegmentWriter::kCreator).value()),
        read_(SharedSegment::Map(FileDescriptor(dup(written_.file().get())), num_bytes, SegmentWriter::kBoth).value()) {
  }
  absl::Span<std::byte> written() const { return written_.bytes(); }
  absl::Span<std::byte> read() const { return read_.bytes(); }

 private:
  SharedSegment written_, read_;
};

// Has the weights in memory of its own, as shared memory has: a pull waits, and whoever wants them reads them there.
// And it hands out the memory of contributions.
class InPlaceTransport : public Transport {
 public:
  InPlaceTransport(const ModelSpec* model, Dtype wire, InProcessTransport* inner) : model_(*model), inner_(*inner) {
    for (const BlobSpec& blob : model->blobs) places_.emplace_back(blob.num_elems * SizeOf(wire));
  }
  const std::byte* InPlace(BlobId blob, Version) const override { return Place(blob).read().data(); }
  absl::StatusOr<PullTiming> Await(BlobId blob, Version version) override {
    return inner_.Pull(blob, version, model_.blob(blob).all_chunks(), Place(blob).written());
  }
  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                  absl::Span<std::byte> destination) override {
    // A block of several blobs has its parameters in one piece only in its slot.
    const LayerSpec& layer = model_.layer(model_.blob(blob).uses.front());
    if (layer.kind == LayerKind::kBlock && layer.blobs.size() > 1) {
      return inner_.Pull(blob, version, chunks, destination);
    }
    return absl::InternalError("what is in place is not pulled");
  }
  std::optional<PushMemory> NewPushMemory(int64_t num_bytes) override {
    outbox_.emplace_back(num_bytes);
    return PushMemory{.bytes = outbox_.back().read(), .owner = nullptr};
  }
  void Push(Contribution contribution) override {
    const std::byte* payload = contribution.payload.data();
    const absl::Span<const std::byte> last = outbox_.empty() ? absl::Span<std::byte>() : outbox_.back().read();
    if (payload < last.data() || payload + contribution.payload.size() > last.data() + last.size()) ++foreign_pushes_;
    inner_.Push(std::move(contribution));
  }
  // Contributions that lay elsewhere than in the memory that was handed out last.
  int foreign_pushes() const { return foreign_pushes_; }
  absl::Status Flush() override { return inner_.Flush(); }
  void Cancel(absl::Status reason) override { inner_.Cancel(std::move(reason)); }

 private:
  const SharedPlace& Place(BlobId blob) const { return places_[static_cast<size_t>(blob.value())]; }

  const ModelSpec& model_;
  InProcessTransport& inner_;
  std::deque<SharedPlace> places_, outbox_;
  int foreign_pushes_ = 0;
};

// How a step is run; none of it may change a bit.
struct Way {
  InnerPolicy inner = InnerPolicy::kRecompute;
  int64_t more_bytes = 0;  // cap above the smallest; -1: as much as the plan can use
  bool resident = false;
  int weight_slots = 2;
  int max_pass_vnodes = 0;
  int threads = 2;
  bool own_memory = false;
  bool in_place = false;                     // the transport has the weights in this host's memory
  std::optional<Dtype> cuda = std::nullopt;  // the cuda device on the emulator, with this compute dtype; none: cpu
  cuda::EmulatedTraits traits = {.has_fused_attention = true};  // of its GPU
  GraphUse graphs = GraphUse::kNever;                           // on cuda
  std::vector<std::vector<int>> workers = {};                   // vnodes of each; empty: one worker with all
  bool group = false;                                           // the workers are one group, and run at once
  BoundaryPolicy boundaries = BoundaryPolicy::kAuto;
  std::optional<PlanChoice> choice = std::nullopt;        // of the plan, instead of the planner's
  std::vector<std::vector<std::string>> algorithms = {};  // of products, as each worker's GPU prefers them; empty: all
  std::optional<Choices> choices = std::nullopt;          // what every worker follows
  ForwardWitness* witness = nullptr;                      // of every worker
  int64_t push_piece_bytes = RelayExecutor::Options().push_piece_bytes;

  KernelSizes kernels() const { return cuda.has_value() ? cuda::CudaKernelSizes(*cuda) : CpuKernelSizes(); }
  std::unique_ptr<Device> MakeDevice(int64_t arena_bytes, size_t worker) const {
    if (cuda.has_value()) {
      cuda::EmulatedTraits made = traits;
      if (!algorithms.empty()) {
        made.algorithms.clear();
        for (const std::string& name : algorithms.at(worker)) {
          const bool rises = name == "rising";
          made.algorithms.push_back({name, rises ? cuda::SumOrder::kRising : cuda::SumOrder::kFalling});
        }
      }
      return cuda::NewCudaDevice({.arena_bytes = arena_bytes, .act = *cuda, .graphs = graphs},
                                 cuda::NewEmulatedRuntime(cuda::GridOrder::kForward, std::move(made)))
          .value();
    }
    std::unique_ptr<Device> device = NewCpuDevice({.arena_bytes = arena_bytes, .threads = threads}).value();
    if (own_memory) device = std::make_unique<DeviceWithMemoryOfItsOwn>(std::move(device));
    return device;
  }
};

// A worker: a device, a plan, an executor on a store.
struct Worker {
  Worker(const ModelSpec& model, const RunConfig& run_in, const Way& way, InProcessStore& store, size_t index = 0)
      : run(run_in), transport(&store), in_place(&model, run_in.precision.wire, &transport) {
    run.relay.inner = way.inner;
    run.relay.boundaries = way.boundaries;
    run.relay.resident = way.resident;
    run.relay.weight_slots = way.weight_slots;
    PlanRequest request{.model = &model,
                        .run = &run,
                        .kernels = way.kernels(),
                        .max_pass_vnodes = way.max_pass_vnodes,
                        .max_group_members = way.group ? static_cast<int>(way.workers.size()) : 0};
    if (way.more_bytes >= 0) request.cap_bytes = SmallestCapBytes(request) + way.more_bytes;
    plan = way.choice.has_value() ? LayArena(request, NeedsOf(request), *way.choice) : MakeRelayPlan(request).value();
    if (plan.depth_first_blocks > 0 && plan.inner.swapped > 0) {
      EXPECT_THAT(plan.leaving_inner_slots, ::testing::Not(::testing::IsEmpty()));  // so that this is tried, too
    }
    device = way.MakeDevice(plan.arena_bytes, index);
    executor = RelayExecutor::Create({.model = &model,
                                      .run = &run,
                                      .device = device.get(),
                                      .transport = way.in_place ? static_cast<Transport*>(&in_place) : &transport,
                                      .plan = plan,
                                      .witness = way.witness,
                                      .push_piece_bytes = way.push_piece_bytes})
                   .value();
    if (!way.choices.has_value()) return;
    executor->Survey(*device->survey());
    EXPECT_OK(device->Follow(*way.choices));
  }
  RunConfig run;
  InProcessTransport transport;
  InPlaceTransport in_place;
  RelayPlan plan;
  std::unique_ptr<Device> device;
  std::unique_ptr<RelayExecutor> executor;
};

struct StepOutcome {
  std::map<int, VnodeRecord> records;
  std::vector<std::vector<std::vector<float>>> use_gradients;  // by blob, use
  int64_t pulls = 0, pushes = 0;
};

class RelayExecutorTest : public ::testing::Test {
 protected:
  void Use(const RunConfig& run) {
    run_ = run;
    model_ = BuildModel(run.model).value();
    masters_ = Masters(model_, run.precision.wire);
    all_ = MakeAssignment(run);
  }
  // A run whose step drops just these of its blocks.
  void UseWithDropped(RunConfig run, const std::vector<LayerId>& dropped) {
    run.layer_drop.share = 0.5;
    const ModelSpec model = BuildModel(run.model).value();
    while (LayerDrop(BuildModel(run.model).value(), run.layer_drop).DroppedIn(kStep) != dropped) ++run.model.init_seed;
    Use(run);
    all_.dropped = dropped;
  }
  std::unique_ptr<InProcessStore> NewStore() {
    auto store = std::make_unique<InProcessStore>(&model_, run_.batch.virtual_nodes, run_.precision.wire);
    Publish(*store);
    return store;
  }
  void Publish(InProcessStore& store, StepId step = kStep) {
    for (const BlobSpec& blob : model_.blobs) {
      store.Publish(blob.id, ReadVersion(step), masters_[static_cast<size_t>(blob.id.value())]);
    }
  }

  StepOutcome RunStep(const Way& way) {
    std::unique_ptr<InProcessStore> store = NewStore();
    StepOutcome outcome;
    if (way.group) {
      RunAsGroup(way, *store, outcome);
      Collect(*store, outcome);
      return outcome;
    }
    std::vector<std::vector<int>> workers = way.workers;
    if (workers.empty()) workers = {{}};
    for (size_t i = 0; i < workers.size(); ++i) {
      const std::vector<int>& vnodes = workers[i];
      Worker worker(model_, run_, way, *store, i);
      const auto result = worker.executor->Run(vnodes.empty() ? all_ : Only(all_, vnodes));
      EXPECT_OK(result);
      if (!result.ok()) return outcome;
      EXPECT_OK(worker.transport.Flush());
      EXPECT_EQ(worker.device->arena_high_water_bytes(), worker.plan.arena_bytes);
      EXPECT_EQ(worker.in_place.foreign_pushes(), 0);
      for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
    }
    Collect(*store, outcome);
    return outcome;
  }
  // Several, with an evaluation behind each, of one executor and the same weights.
  std::vector<StepOutcome> RunSteps(const Way& way) {
    constexpr int kSteps = 2;  // what comes again is a graph
    std::unique_ptr<InProcessStore> store = NewStore();
    Worker worker(model_, run_, way, *store);
    std::vector<StepOutcome> outcomes(kSteps);
    for (int64_t step = 0; step < kSteps; ++step) {
      Assignment assignment = all_;
      assignment.step = StepId(kStep.value() + step);
      if (step > 0) Publish(*store, assignment.step);
      const auto result = worker.executor->Run(assignment);
      EXPECT_OK(result);
      EXPECT_OK(worker.transport.Flush());
      if (!result.ok()) return outcomes;
      StepOutcome& outcome = outcomes[static_cast<size_t>(step)];
      for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
      Collect(*store, outcome, assignment.step);
      assignment.evaluation_round = 0;
      EXPECT_OK(worker.executor->Run(assignment));
    }
    return outcomes;
  }
  // Each worker in a thread of its own.
  void RunAsGroup(const Way& way, InProcessStore& store, StepOutcome& outcome) {
    std::vector<std::unique_ptr<Worker>> workers;
    std::vector<Device*> devices;
    for (size_t rank = 0; rank < way.workers.size(); ++rank) {
      workers.push_back(std::make_unique<Worker>(model_, run_, way, store));
      devices.push_back(workers.back()->device.get());
    }
    const std::vector<std::unique_ptr<Group>> groups = NewGroup(devices, way.cuda.has_value());
    std::vector<absl::StatusOr<PassResult>> results(groups.size(), absl::UnknownError("it did not run"));
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      threads.emplace_back([&, rank] {
        Assignment assignment = Only(all_, way.workers[rank]);
        assignment.group = GroupVnodes{.group = 1, .rank = static_cast<int>(rank), .vnodes = way.workers};
        results[rank] = workers[rank]->executor->Run(assignment, groups[rank].get());
        if (!results[rank].ok()) groups[rank]->End(results[rank].status());  // the others wait for it
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (size_t rank = 0; rank < groups.size(); ++rank) {
      EXPECT_OK(results[rank]);
      EXPECT_OK(workers[rank]->transport.Flush());
      EXPECT_EQ(workers[rank]->device->arena_high_water_bytes(), workers[rank]->plan.arena_bytes);
      if (!results[rank].ok()) continue;
      for (const VnodeRecord& record : results[rank]->records) outcome.records[record.vnode] = record;
    }
  }
  static std::vector<std::unique_ptr<Group>> NewGroup(const std::vector<Device*>& devices, bool nccl = false) {
    std::vector<std::unique_ptr<Group>> groups;
    std::string token;
    const int size = static_cast<int>(devices.size());
    for (int rank = 0; rank < size; ++rank) {
      const std::unique_ptr<GroupMaker> maker =
          nccl ? NewNcclGroupMaker(NewEmulatedNccl()) : NewSharedMemoryGroupMaker();
      GroupOptions options = {.id = 1,
                              .rank = rank,
                              .size = size,
                              .device = devices[static_cast<size_t>(rank)],
                              .on_joined = [](absl::Status) {}};
      auto group = rank == 0 ? maker->Found(std::move(options), token) : maker->Join(std::move(options), token);
      EXPECT_OK(group);
      groups.push_back(*std::move(group));
    }
    return groups;
  }
  void Collect(const InProcessStore& store, StepOutcome& outcome, StepId step = kStep) {
    const std::vector<bool> dropped = DroppedBlobs(model_, all_.dropped);
    for (const BlobSpec& blob : model_.blobs) {
      std::vector<std::vector<float>> uses;
      for (size_t use = 0; use < blob.uses.size(); ++use) {
        if (blob.frozen || dropped[static_cast<size_t>(blob.id.value())]) {
          EXPECT_TRUE(store.Held(step, blob.id, static_cast<int>(use)).empty()) << blob.name;
          continue;
        }
        const auto gradient = store.UseGradient(step, blob.id, static_cast<int>(use));
        EXPECT_OK(gradient);
        uses.push_back(gradient.ok() ? *gradient : std::vector<float>());
      }
      outcome.use_gradients.push_back(std::move(uses));
    }
    outcome.pulls = store.num_pulls();
    outcome.pushes = store.num_pushes();
  }

  void ExpectSameBits(const StepOutcome& a, const StepOutcome& b, const std::string& what) {
    ASSERT_EQ(a.records.size(), b.records.size()) << what;
    for (const auto& [vnode, record] : a.records) {
      const VnodeRecord& other = b.records.at(vnode);
      EXPECT_EQ(std::memcmp(&record.loss_sum, &other.loss_sum, sizeof(double)), 0) << what << " vnode " << vnode;
      EXPECT_EQ(record.counted_tokens, other.counted_tokens) << what;
      EXPECT_EQ(record.finite, other.finite) << what;
    }
    for (size_t blob = 0; blob < a.use_gradients.size(); ++blob) {
      for (size_t use = 0; use < a.use_gradients[blob].size(); ++use) {
        const std::vector<float>& x = a.use_gradients[blob][use];
        const std::vector<float>& y = b.use_gradients[blob][use];
        ASSERT_EQ(x.size(), y.size()) << what;
        EXPECT_EQ(std::memcmp(x.data(), y.data(), x.size() * sizeof(float)), 0)
            << what << " " << model_.blobs[blob].name << " use " << use;
      }
    }
  }

  // Of every tensor that is not frozen, by "NAME use N".
  std::map<std::string, std::vector<float>> ByTensor(const StepOutcome& outcome) const {
    std::map<std::string, std::vector<float>> gradients;
    for (const BlobSpec& blob : model_.blobs) {
      const auto& uses = outcome.use_gradients[static_cast<size_t>(blob.id.value())];
      for (size_t use = 0; use < uses.size(); ++use) {
        for (const TensorSpec& tensor : blob.tensors) {
          const auto first = uses[use].begin() + tensor.offset_elems;
          gradients[absl::StrCat(tensor.name, " use ", use)].assign(first, first + tensor.num_elems());
        }
      }
    }
    return gradients;
  }

  // Every tensor of every use against the fp64 reference: the error of the whole tensor relative to its norm.
  void ExpectNearReference(const StepOutcome& got, double tolerance, double loss_tolerance = 1e-5) {
    std::vector<std::vector<double>> masters;
    for (const auto& blob : masters_) masters.emplace_back(blob.begin(), blob.end());
    const ReferenceGpt2 reference(&model_, masters);
    const auto want = reference.Step(all_, run_.batch.micro_batch, run_.model.init_seed);
    for (const auto& [vnode, record] : got.records) {
      const auto v = static_cast<size_t>(vnode);
      EXPECT_LE(std::abs(record.loss_sum / want.loss_sum[v] - 1), loss_tolerance) << "vnode " << vnode;
      EXPECT_EQ(record.counted_tokens, want.counted[v]);
      EXPECT_TRUE(record.finite);
    }
    for (const LayerSpec& layer : model_.layers) {
      for (const BlobUse& use : layer.blobs) {
        for (const TensorSpec& tensor : model_.blob(use.blob).tensors) {
          ExpectNear(layer, use, tensor, want.gradients[static_cast<size_t>(layer.id.value())],
                     got.use_gradients[static_cast<size_t>(use.blob.value())][static_cast<size_t>(use.use)], tolerance);
        }
      }
    }
  }
  void ExpectNear(const LayerSpec& layer, const BlobUse& use, const TensorSpec& tensor,
                  const std::vector<double>& want_slot, const std::vector<float>& got_blob, double tolerance) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < tensor.num_elems(); ++i) {
      const double want = want_slot[static_cast<size_t>(use.offset_elems + tensor.offset_elems + i)];
      const double got = static_cast<double>(got_blob[static_cast<size_t>(tensor.offset_elems + i)]) / all_.loss_scale;
      error += (got - want) * (got - want);
      norm += want * want;
    }
    EXPECT_GT(norm, 0) << layer.name << " " << tensor.name;
    EXPECT_LE(std::sqrt(error / norm), tolerance) << layer.name << " " << tensor.name;
  }

  RunConfig run_;
  ModelSpec model_;
  std::vector<std::vector<float>> masters_;
  Assignment all_;
};

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

TEST_F(RelayExecutorTest, AHeadThatKeepsItsLogitsChangesNoBit) {
  RunConfig run = SmallRun();
  run.model = {.num_layers = 1, .d_model = 8, .num_heads = 2, .context = 5, .vocab = 9001, .init_seed = 1};
  run.batch = {.virtual_nodes = 2, .micro_batches = 2, .micro_batch = 1};
  for (const Dtype wire : {Dtype::kF32, Dtype::kBf16}) {
    run.precision = {.wire = wire, .gradients = wire};
    Use(run);
    for (const std::optional<Dtype> cuda : {std::optional<Dtype>(), std::optional<Dtype>(wire)}) {
      Way way{.cuda = cuda, .choice = PlanChoice{.keeps_logits = false}};
      const StepOutcome computed_twice = RunStep(way);
      way.choice->keeps_logits = true;
      ExpectSameBits(computed_twice, RunStep(way), absl::StrCat(DtypeName(wire), cuda.has_value() ? ", cuda" : ""));
    }
  }
}

RunConfig SmallLlama(Dtype dtype) {
  RunConfig run = SmallRun(dtype);
  run.model = {.family = ModelFamily::kLlama, .num_layers = 3, .d_model = 64, .num_heads = 4, .context = 13};
  run.model.max_positions = 13;
  run.model.vocab = 37;
  run.model.num_kv_heads = 2;
  run.model.d_head = 32;  // queries, keys and values are one product
  run.model.d_ff = 64;
  run.model.tied_head = false;
  run.model.qkv_bias = true;
  return run;
}

// Which ends the way back early, splits layers, or leaves the head alone to train.
std::vector<RunConfig> FrozenRuns(Dtype dtype) {
  std::vector<RunConfig> runs;
  const auto add = [&](RunConfig run, std::vector<std::string> freeze) {
    run.model.freeze = std::move(freeze);
    runs.push_back(std::move(run));
  };
  add(SmallRun(dtype), {"transformer.w*", "transformer.h.0.*"});
  add(SmallRun(dtype), {"transformer.h.1.*"});
  add(SmallRun(dtype), {"*", "!*.bias"});
  add(SmallRun(dtype), {"*", "!transformer.ln_f.*"});
  add(SmallRun(dtype), {"*.attn.*", "*.ln_2.*", "transformer.wpe.weight"});
  add(SmallRun(dtype), {"transformer.wte.weight"});
  add(SmallLlama(dtype), {"model.embed_tokens.weight", "lm_head.weight", "*.mlp.*"});
  add(SmallLlama(dtype), {"*_proj.weight", "!model.layers.2.*"});
  return runs;
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

TEST_F(RelayExecutorTest, WithFrozenTensorsNoChoiceOfThePlanChangesABit) {
  const std::vector<std::vector<int>> two = {{0, 1, 2}, {3}};
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    for (const RunConfig& run : FrozenRuns(dtype)) {
      Use(run);
      const StepOutcome want = RunStep({});
      const std::string frozen = run.model.freeze[0];
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .weight_slots = 1}), frozen + ", kept");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = -1, .workers = two}), frozen + ", all");
      ExpectSameBits(want, RunStep({.more_bytes = -1, .resident = true}), frozen + ", resident");
      ExpectSameBits(want, RunStep({.own_memory = true}), frozen + ", memory of its own");
      ExpectSameBits(want, RunStep({.in_place = true}), frozen + ", in place");
      ExpectSameBits(want, RunStep({.own_memory = true, .in_place = true}), frozen + ", copied from where it lies");
      if (dtype != Dtype::kF32) continue;  // in a group, sums are what leaves it
      ExpectSameBits(want, RunStep({.own_memory = true, .workers = {{0, 1}, {2, 3}}, .group = true}),
                     frozen + ", a group");
      ExpectSameBits(want, RunStep({.in_place = true, .workers = {{0, 1}, {2, 3}}, .group = true}),
                     frozen + ", a group in place");
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

TEST_F(RelayExecutorTest, WithBlocksDroppedNoChoiceOfThePlanChangesABit) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    for (const auto& dropped : std::vector<std::vector<LayerId>>{
             {LayerId(1)}, {LayerId(4)}, {LayerId(2), LayerId(3)}, {LayerId(1), LayerId(2), LayerId(4)}}) {
      RunConfig run = SmallRun(dtype);
      run.model.num_layers = 4;
      run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
      UseWithDropped(run, dropped);
      const StepOutcome want = RunStep({});
      const std::string what = absl::StrCat(DtypeName(dtype), ", ", dropped.size(), " dropped, ");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .weight_slots = 1}), what + "kept");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = 100000}), what + "some kept");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kSwap, .more_bytes = 50000, .own_memory = true}),
                     what + "swapped");
      ExpectSameBits(want, RunStep({.more_bytes = -1, .resident = true}), what + "resident");
      ExpectSameBits(want, RunStep({.own_memory = true, .in_place = true}), what + "copied from where they lie");
      ExpectSameBits(want, RunStep({.max_pass_vnodes = 1}), what + "passes of one vnode");
      ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = -1, .workers = {{0, 1, 2}, {3}}}),
                     what + "two workers");
      if (dtype != Dtype::kF32) continue;
      ExpectSameBits(want, RunStep({.own_memory = true, .workers = {{0, 1}, {2, 3}}, .group = true}), what + "a group");
    }
  }
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

TEST_F(RelayExecutorTest, NoChoiceOfThePlanChangesABit) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    RunConfig run = SmallRun(dtype);
    run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
    Use(run);
    const StepOutcome want = RunStep({});
    const std::string name(DtypeName(dtype));
    ExpectSameBits(want, RunStep({}), name + " again");
    ExpectSameBits(want, RunStep({.threads = 1}), name + " one thread");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep}), name + " keep");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = 200000}), name + " keep some");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = -1}), name + " no cap");
    ExpectSameBits(want, RunStep({.more_bytes = 60000}), name + " more gradient slots");
    ExpectSameBits(want, RunStep({.more_bytes = -1}), name + " most gradient slots");
    for (const int weight_slots : {1, 3, 5}) {
      ExpectSameBits(want, RunStep({.weight_slots = weight_slots}), absl::StrCat(name, " weight slots ", weight_slots));
    }
    ExpectSameBits(want, RunStep({.resident = true}), name + " resident");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true}),
                   name + " resident, kept");
    for (const bool own_memory : {false, true}) {
      for (const int64_t more_bytes : {0, 100000, -1}) {
        const std::string which = absl::StrCat(name, own_memory ? ", memory of its own, " : " ", more_bytes, " more");
        Way way{.inner = InnerPolicy::kSwap, .more_bytes = more_bytes, .own_memory = own_memory};
        way.boundaries = BoundaryPolicy::kHost;
        ExpectSameBits(want, RunStep(way), which + " swapped");
        way.inner = InnerPolicy::kAuto;
        ExpectSameBits(want, RunStep(way), which + " boundaries on the host");
        way.boundaries = BoundaryPolicy::kDevice;
        way.inner = InnerPolicy::kRecompute;
        ExpectSameBits(want, RunStep(way), which + " boundaries on the device");
      }
    }
    ExpectSameBits(want, RunStep({.max_pass_vnodes = 1}), name + " passes of one vnode");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .max_pass_vnodes = 3}),
                   name + " passes of three vnodes");
    ExpectSameBits(want, RunStep({.own_memory = true}), name + " memory of its own");
    ExpectSameBits(want, RunStep({.in_place = true}), name + " weights in place");
    ExpectSameBits(want, RunStep({.own_memory = true, .in_place = true}), name + " copied from where they lie");
  }
}

// Of each micro-batch in turn: the gradients of all these layers are under way, and leave, side by side.
TEST_F(RelayExecutorTest, BlocksThatAreDepthFirstChangeNoBit) {
  const std::vector<std::vector<int>> two = {{0, 2}, {1, 3}};
  for (const auto& [dtype, micro_batches] :
       {std::pair(Dtype::kF32, 2), {Dtype::kBf16, 2}, {Dtype::kF16, 2}, {Dtype::kF32, 1}, {Dtype::kBf16, 1}}) {
    RunConfig run = SmallRun(dtype);
    run.batch.micro_batches = micro_batches;
    run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
    for (const char* freeze : {"", "transformer.h.2.*", "transformer.h.0.*", "transformer.ln_f.*"}) {
      if (*freeze != 0 && dtype != Dtype::kF32) continue;
      run.model.freeze.clear();
      if (*freeze != 0) run.model.freeze.push_back(freeze);
      Use(run);
      const StepOutcome want = RunStep({});
      for (const bool own_memory : {false, true}) {
        for (const auto& [gradient_slots, blocks] : {std::pair(1, 1), {3, 1}, {1, 2}, {3, 2}}) {
          const int64_t kept = gradient_slots == 1 ? 3 : 0;
          Way way{.inner = InnerPolicy::kAuto, .own_memory = own_memory};
          way.choice = PlanChoice{.inner_slots = kept + blocks + 1,
                                  .kept_inner = kept,
                                  .swapped_inner = 2,
                                  .weight_slots = gradient_slots == 1 ? 1 : 2,
                                  .gradient_slots = gradient_slots,
                                  .push_slots = gradient_slots == 1 ? 2 : 1,
                                  .depth_first_blocks = blocks};
          const std::string which =
              absl::StrCat(DtypeName(dtype), ", ", micro_batches, " micro-batches, frozen '", freeze, "', ",
                           gradient_slots, " slots, ", kept, " kept, ", blocks, " blocks depth first");
          ExpectSameBits(want, RunStep(way), which);
          way.workers = two;
          ExpectSameBits(want, RunStep(way), which + ", two workers");
          way.max_pass_vnodes = 1;
          ExpectSameBits(want, RunStep(way), which + ", passes of one vnode");
        }
      }
    }
  }
}

// Only the first slots have room for embedding and head: of weights that are copied, and of gradients. These leave from
// weight slots where they can.
TEST_F(RelayExecutorTest, TablesThatAreLargerThanBlocksChangeNoBit) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model.num_layers = 5;
  run.model.vocab = 700;
  for (const int vnodes : {1, 4}) {
    run.batch.virtual_nodes = vnodes;
    Use(run);
    const StepOutcome want = RunStep({.resident = true});
    for (const bool own_memory : {false, true}) {
      for (const int weight_slots : {1, 2, 3, 4}) {
        for (const int blocks : {0, 2, 5}) {
          Way way{.inner = InnerPolicy::kAuto, .own_memory = own_memory};
          way.choice = PlanChoice{.inner_slots = blocks + 1,
                                  .weight_slots = weight_slots,
                                  .gradient_slots = vnodes == 1 ? 1 : 1 + weight_slots % 2 * 2,
                                  .push_slots = 1 + weight_slots % 3,
                                  .depth_first_blocks = blocks};
          const std::string which = absl::StrCat(vnodes, " vnodes, ", weight_slots, " slots, ", blocks,
                                                 " blocks depth first", own_memory ? ", memory of its own" : "");
          ExpectSameBits(want, RunStep(way), which);
          if (vnodes == 1) continue;
          way.workers = {{0, 2}, {1, 3}};
          ExpectSameBits(want, RunStep(way), which + ", two workers");
        }
      }
    }
  }
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

TEST_F(RelayExecutorTest, OnCudaNoChoiceOfThePlanNorOfWorkersChangesABit) {
  for (const Dtype act : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    RunConfig run = SmallRun(act);
    run.model.embedding_dropout = run.model.attention_dropout = run.model.residual_dropout = 0.1;
    Use(run);
    const StepOutcome want = RunStep({.cuda = act});
    const std::string name = absl::StrCat("cuda ", std::string(DtypeName(act)));
    ExpectSameBits(want, RunStep({.cuda = act}), name + " again");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .cuda = act}), name + " keep");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = 200000, .cuda = act}),
                   name + " keep some");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = act}),
                   name + " resident, kept");
    ExpectSameBits(want, RunStep({.weight_slots = 3, .max_pass_vnodes = 1, .cuda = act}),
                   name + " three weight slots, passes of one vnode");
    ExpectSameBits(want, RunStep({.in_place = true, .cuda = act}), name + " copied from where they lie");
    ExpectSameBits(want, RunStep({.cuda = act, .workers = {{0, 1}, {2}, {3}}}), name + " three workers");
    ExpectSameBits(
        want,
        RunStep({.in_place = true, .cuda = act, .traits = {.most_pinned_bytes = 60000, .has_fused_attention = true}}),
        name + " with little memory pinned");
  }
}

// Step after step on one executor each, as graphs are of what comes again, with dropout under other keys. Boundaries on
// the host and swapped activations are copied between what graphs hold.
TEST_F(RelayExecutorTest, GraphsChangeNoBit) {
  for (const InnerPolicy inner : {InnerPolicy::kRecompute, InnerPolicy::kKeep, InnerPolicy::kSwap}) {
    int64_t launched_without_dropout = 0;
    for (const double dropout : {0.0, 0.1}) {
      RunConfig run = SmallRun(Dtype::kBf16);
      run.model.embedding_dropout = run.model.residual_dropout = run.model.attention_dropout = dropout;
      Use(run);
      std::atomic<int64_t> launched{0};
      Way way{.inner = inner, .more_bytes = inner == InnerPolicy::kKeep ? -1 : 0, .cuda = Dtype::kBf16};
      way.boundaries = inner == InnerPolicy::kKeep ? BoundaryPolicy::kAuto : BoundaryPolicy::kHost;
      const std::vector<StepOutcome> want = RunSteps(way);
      way.graphs = GraphUse::kAlways;
      way.traits.graphs_launched = &launched;
      const std::vector<StepOutcome> got = RunSteps(way);
      const std::string what = absl::StrCat("inner ", static_cast<int>(inner), ", dropout ", dropout, ", step ");
      for (size_t i = 0; i < want.size(); ++i) ExpectSameBits(want[i], got[i], absl::StrCat(what, i));
      if (dropout == 0) {
        launched_without_dropout = launched;
        EXPECT_GT(launched, 0) << what;
      } else {
        // An evaluation drops nothing, and is other work than a forward pass.
        EXPECT_GT(launched, launched_without_dropout / 2) << what;
      }
    }
  }
}

TEST_F(RelayExecutorTest, OnCudaFusedAttentionGivesTheGradientsAndTheSameBits) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model.residual_dropout = 0.1;
  Use(run);
  const Dtype act = Dtype::kBf16;
  const StepOutcome want = RunStep({.cuda = act});
  ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .cuda = act}), "keep");
  ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = act}),
                 "resident, kept");
  ExpectSameBits(want, RunStep({.cuda = act, .workers = {{0, 1}, {2}, {3}}}), "three workers");
  RunConfig in_fp32 = SmallRun();
  in_fp32.model.residual_dropout = 0.1;
  Use(in_fp32);
  ExpectNearReference(RunStep({.cuda = act}), 0.04, 0.004);  // as CudaGivesTheGradientsOfTheWholeModel
}

// What the first of these workers would choose.
Choices ChoicesOf(const ModelSpec& model, const RunConfig& run, const Way& way, ChoiceRule rule) {
  InProcessStore store(&model, run.batch.virtual_nodes, run.precision.wire);
  Worker worker(model, run, way, store);
  worker.executor->Survey(*worker.device->survey());
  return worker.device->Choose(rule).value();
}

RunConfig LlamaRun(Dtype dtype) {
  RunConfig run = SmallRun(dtype);
  run.model = {.family = ModelFamily::kLlama, .num_layers = 3, .d_model = 24, .num_heads = 6};
  run.model.context = run.model.max_positions = 13;
  run.model.vocab = 37;
  run.model.num_kv_heads = 2;
  run.model.d_head = 8;
  run.model.d_ff = 41;
  run.model.tied_head = false;
  run.model.qkv_bias = run.model.qk_norm = true;
  run.model.sliding_window = 7;
  run.model.rotary.theta = 100;
  run.model.attention_dropout = 0.1;
  run.model.init_seed = 11;
  return run;
}

RunConfig BertRun(Dtype dtype) {
  RunConfig run = SmallRun(dtype);
  run.model = {.family = ModelFamily::kBert, .num_layers = 3, .d_model = 32, .num_heads = 4};
  run.model.context = 13;
  run.model.max_positions = 17;
  run.model.vocab = 37;
  run.model.d_ff = 41;
  run.model.num_types = 3;
  run.model.embedding_dropout = run.model.residual_dropout = run.model.attention_dropout = 0.1;
  run.model.init_seed = 11;
  return run;
}

// Of padded samples, so that attention has documents.
RunConfig ClassifierRun(Dtype dtype) {
  RunConfig run = BertRun(dtype);
  run.model.num_classes = 5;
  run.model.classifier_dropout = 0.2;
  run.data.documents = DocumentMode::kPadded;
  return run;
}

// In 16 bits attention is the library's: a window of Llama's, documents of the classifier's, dropout of all.
TEST_F(RelayExecutorTest, OfOtherFamiliesNoChoiceOfThePlanNorOfWorkersChangesABit) {
  const std::vector<RunConfig> runs = {LlamaRun(Dtype::kBf16), BertRun(Dtype::kBf16), ClassifierRun(Dtype::kBf16)};
  for (const auto& [run, cuda] :
       {std::pair(runs[0], std::optional<Dtype>()), std::pair(runs[0], std::optional(Dtype::kBf16)),
        std::pair(runs[1], std::optional<Dtype>()), std::pair(runs[1], std::optional(Dtype::kBf16)),
        std::pair(runs[2], std::optional<Dtype>()), std::pair(runs[2], std::optional(Dtype::kBf16))}) {
    Use(run);
    const StepOutcome want = RunStep({.cuda = cuda});
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .cuda = cuda}), "keep");
    ExpectSameBits(want, RunStep({.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = cuda}),
                   "resident, kept");
    ExpectSameBits(want, RunStep({.weight_slots = 3, .max_pass_vnodes = 1, .cuda = cuda}), "passes of one vnode");
    ExpectSameBits(want, RunStep({.in_place = true, .cuda = cuda}), "in place");
    ExpectSameBits(want, RunStep({.cuda = cuda, .workers = {{0, 1}, {2}, {3}}}), "three workers");
  }
}

// The cpu device's gradients are held against PyTorch (tests/reference); the cuda device's against the cpu's.
TEST_F(RelayExecutorTest, OnCudaModelsOfOtherFamiliesHaveTheGradientsOfTheCpu) {
  const std::vector<RunConfig> runs = {LlamaRun(Dtype::kF32), BertRun(Dtype::kF32), ClassifierRun(Dtype::kF32)};
  for (const auto& [run, act, tolerance] :
       {std::tuple(runs[0], Dtype::kF32, 1e-5), std::tuple(runs[0], Dtype::kBf16, 0.06),
        std::tuple(runs[1], Dtype::kF32, 1e-5), std::tuple(runs[1], Dtype::kBf16, 0.06),
        std::tuple(runs[2], Dtype::kF32, 1e-5), std::tuple(runs[2], Dtype::kBf16, 0.06)}) {
    Use(run);
    const StepOutcome want = RunStep({});
    const StepOutcome got = RunStep({.cuda = act});
    for (size_t blob = 0; blob < want.use_gradients.size(); ++blob) {
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

TEST_F(RelayExecutorTest, WorkersThatPreferOtherAlgorithmsFollowOneChoiceToTheBit) {
  const std::vector<std::string> rising = {"rising", "falling"}, falling = {"falling", "rising"};
  constexpr Dtype kAct = Dtype::kBf16;
  Use(SmallRun(kAct));
  const StepOutcome alone = RunStep({.cuda = kAct, .algorithms = {rising}});
  // Left to themselves they give other bits: what they follow matters.
  const StepOutcome other = RunStep({.cuda = kAct, .algorithms = {falling}});
  EXPECT_NE(alone.use_gradients[1][0], other.use_gradients[1][0]);
  const Choices made = ChoicesOf(model_, run_, {.cuda = kAct, .algorithms = {rising}}, ChoiceRule::kFirst);
  ExpectSameBits(alone, RunStep({.cuda = kAct, .algorithms = {falling}, .choices = made}), "told");
  ExpectSameBits(
      alone,
      RunStep({.cuda = kAct, .workers = {{0, 1}, {2}, {3}}, .algorithms = {rising, falling, falling}, .choices = made}),
      "three workers");
}

TEST_F(RelayExecutorTest, ASurveyFindsEveryProductOfEveryPlan) {
  // A vocabulary of two chunks, whose products have other shapes.
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model = {.num_layers = 2, .d_model = 8, .num_heads = 2, .context = 5, .vocab = 4100, .init_seed = 1};
  run.batch = {.virtual_nodes = 3, .micro_batches = 2, .micro_batch = 1};
  Use(run);
  const Way least = {.cuda = Dtype::kBf16};
  const Choices made = ChoicesOf(model_, run_, least, ChoiceRule::kFirst);
  const StepOutcome want = RunStep(least);
  // A product without a choice would be an error.
  for (Way way : {least, Way{.inner = InnerPolicy::kKeep, .more_bytes = -1, .resident = true, .cuda = Dtype::kBf16},
                  Way{.more_bytes = -1, .weight_slots = 3, .max_pass_vnodes = 1, .cuda = Dtype::kBf16}}) {
    EXPECT_EQ(ChoicesOf(model_, run_, way, ChoiceRule::kFirst), made);
    way.choices = made;
    ExpectSameBits(want, RunStep(way), "told");
  }
}

TEST_F(RelayExecutorTest, ChoicesThatWereTriedLeaveAStepAsItWas) {
  Use(SmallRun(Dtype::kBf16));
  const Way way = {.cuda = Dtype::kBf16, .algorithms = {{"rising", "falling"}}};
  const StepOutcome want = RunStep(way);
  std::unique_ptr<InProcessStore> store = NewStore();
  Worker worker(model_, run_, way, *store);
  worker.executor->Survey(*worker.device->survey());
  // Runs products all over the arena, before the first step.
  ASSERT_OK_AND_ASSIGN(Choices made, worker.device->Choose(ChoiceRule::kFastest));
  for (auto& [key, value] : made) value = value == "falling" ? "rising" : value;  // attention's stays
  ASSERT_OK(worker.device->Follow(made));
  const auto result = worker.executor->Run(all_);
  ASSERT_OK(result);
  StepOutcome outcome;
  for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
  Collect(*store, outcome);
  ExpectSameBits(want, outcome, "after a trial");
  EXPECT_EQ(worker.device->arena_high_water_bytes(), worker.plan.arena_bytes);
}

TEST_F(RelayExecutorTest, NoSplitOfVnodesAmongWorkersChangesABit) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16, Dtype::kF16}) {
    RunConfig run = SmallRun(dtype);
    run.batch.virtual_nodes = 5;
    run.model.residual_dropout = 0.1;
    Use(run);
    const StepOutcome want = RunStep({.more_bytes = -1});
    const std::vector<std::vector<std::vector<int>>> splits = {
        {{0, 1}, {2, 3, 4}}, {{0}, {1}, {2, 3}, {4}}, {{0, 2, 4}, {1, 3}}, {{4}, {0, 1, 2, 3}}};
    for (const auto& split : splits) {
      for (const int64_t more_bytes : {0, -1}) {
        ExpectSameBits(want, RunStep({.inner = InnerPolicy::kAuto, .more_bytes = more_bytes, .workers = split}),
                       absl::StrCat(std::string(DtypeName(dtype)), " ", split.size(), " workers"));
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
  EXPECT_THAT(worker.executor->Run(all_),
              StatusIs(absl::StatusCode::kAborted, "step 5, layer h.0, forward: pull of blob h.0: overwritten"));
  store->FailPull(block, 1, absl::AbortedError("overwritten again"));
  EXPECT_THAT(worker.executor->Run(all_),
              StatusIs(absl::StatusCode::kAborted, "step 5, layer h.0, backward: pull of blob h.0"));
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
    InProcessStore store(&model_, run_.batch.virtual_nodes, run_.precision.wire);
    Worker worker(model_, run_, way, store);
    std::thread publisher([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      Publish(store);
    });
    const auto result = worker.executor->Run(Only(all_, {0}));
    publisher.join();
    ASSERT_OK(result);
    const auto waited = [&](WaitCause cause) { return result->compute_wait_seconds[static_cast<size_t>(cause)]; };
    EXPECT_GE(waited(WaitCause::kVersion), 0.05);
    EXPECT_LE(waited(WaitCause::kPull), waited(WaitCause::kVersion));
    EXPECT_LE(waited(WaitCause::kVersion), result->seconds);
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
    for (const bool resident : {false, true}) {
      Worker worker(model_, run_, {.resident = resident}, *store);
      for (const size_t length : {1u, 2u, 7u, 13u}) {
        const std::vector<int32_t> tokens(all_.vnodes[1].tokens.begin(), all_.vnodes[1].tokens.begin() + length);
        ASSERT_OK_AND_ASSIGN(const std::vector<float> got,
                             worker.executor->NextTokenLogits(ReadVersion(kStep), tokens));
        const std::vector<double> want = reference.NextTokenLogits(tokens);
        ASSERT_EQ(got.size(), want.size());
        for (size_t v = 0; v < got.size(); ++v) EXPECT_LE(std::abs(got[v] - want[v]), 1e-4) << length << " " << v;
      }
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
  EXPECT_THAT(worker.executor->Run(bad), StatusIs(absl::StatusCode::kInvalidArgument, "vnode 1, token 5: id 37"));
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

// Larger than a chunk, so that members have parts of a blob, and a vocabulary that makes parts of very different sizes.
RunConfig RunOfSeveralChunks(Dtype dtype, int virtual_nodes) {
  RunConfig run = SmallRun(dtype);
  run.model = {.num_layers = 2, .d_model = 160, .num_heads = 2, .context = 7, .vocab = 5000, .init_seed = 11};
  run.batch = {.virtual_nodes = virtual_nodes, .micro_batches = 2, .micro_batch = 1};
  return run;
}

TEST_F(RelayExecutorTest, ALayerThatLeavesInPiecesGivesTheSameBits) {
  Use(RunOfSeveralChunks(Dtype::kBf16, 4));
  ASSERT_EQ(model_.blob(BlobId(0)).num_chunks(), 4);  // the last one short
  ASSERT_EQ(model_.blob(model_.layers[1].blobs[0].blob).num_chunks(), 2);
  const StepOutcome whole = RunStep({});
  EXPECT_EQ(whole.pushes, (2 + 2 + 2) * 4);
  constexpr int64_t kTwoChunks = 2 * kChunkElems * 2;  // of bf16
  const std::pair<std::string, Way> ways[] = {
      {"cpu", {.push_piece_bytes = kTwoChunks}},
      {"memory of its own", {.own_memory = true, .push_piece_bytes = kTwoChunks}},
      {"in the inbox", {.in_place = true, .push_piece_bytes = kTwoChunks}},
      {"two workers", {.workers = {{0, 3}, {1, 2}}, .push_piece_bytes = kTwoChunks}},
  };
  for (const auto& [name, way] : ways) {
    const StepOutcome pieces = RunStep(way);
    ExpectSameBits(whole, pieces, name);
    EXPECT_EQ(pieces.pushes, (3 + 2 + 3) * 4) << name;  // of the table two, the blocks and the small ones whole
  }
  // A sum in fp32 has twice the bytes.
  const StepOutcome sum = RunStep({.more_bytes = -1, .push_piece_bytes = kTwoChunks});
  ExpectSameBits(whole, sum, "sum");
  EXPECT_EQ(sum.pushes, 5 + 2 * 2 + 5);
  for (const bool in_place : {false, true}) {
    const Way group = {.in_place = in_place, .workers = EvenShares(4, 2), .group = true};
    Way in_pieces = group;
    in_pieces.push_piece_bytes = 1;
    const StepOutcome pieces = RunStep(in_pieces);
    ExpectSameBits(whole, pieces, "group");
    EXPECT_EQ(pieces.pushes, sum.pushes);  // each chunk by itself, too
  }
}

TEST_F(RelayExecutorTest, OnCudaALayerThatLeavesInPiecesGivesTheSameBits) {
  Use(RunOfSeveralChunks(Dtype::kF32, 2));
  for (const bool in_place : {false, true}) {
    const StepOutcome whole = RunStep({.in_place = in_place, .cuda = Dtype::kF32});
    const StepOutcome pieces = RunStep({.in_place = in_place, .cuda = Dtype::kF32, .push_piece_bytes = 1});
    ExpectSameBits(whole, pieces, in_place ? "in the inbox" : "elsewhere");
    EXPECT_EQ(whole.pushes, (2 + 2 + 2) * 2);
    EXPECT_EQ(pieces.pushes, (5 + 2 * 2 + 5) * 2);
  }
}

TEST_F(RelayExecutorTest, AGroupGivesTheBitsOfOneWorker) {
  for (const Dtype dtype : {Dtype::kF32, Dtype::kBf16}) {
    Use(RunOfSeveralChunks(dtype, 8));
    const StepOutcome alone = RunStep({});
    for (const int members : {2, 3, 4, 8}) {
      const std::string what = absl::StrCat(DtypeName(dtype), ", ", members, " members");
      const auto shares = EvenShares(8, members);
      const StepOutcome together = RunStep({.workers = shares, .group = true});
      ExpectSameBits(alone, together, what);
      ExpectSameBits(alone, RunStep({.own_memory = true, .workers = shares, .group = true}), what + ", own memory");
      ExpectSameBits(alone, RunStep({.in_place = true, .workers = shares, .group = true}), what + ", in place");
    }
    ExpectSameBits(alone, RunStep({.more_bytes = -1, .resident = true, .workers = EvenShares(8, 4), .group = true}),
                   "resident");
    ExpectSameBits(alone, RunStep({.weight_slots = 1, .workers = {{0}, {1, 2, 3, 4}, {5, 6, 7}}, .group = true}),
                   "uneven");
    ExpectSameBits(alone, RunStep({.own_memory = true, .in_place = true, .workers = EvenShares(8, 2), .group = true}),
                   "weights copied from where the daemon has them");
  }
}

TEST_F(RelayExecutorTest, OnCudaAGroupOverNcclGivesTheBitsOfOneWorker) {
  RunConfig run = SmallRun(Dtype::kBf16);
  run.model = {.num_layers = 1, .d_model = 56, .num_heads = 2, .context = 5, .vocab = 5000, .init_seed = 11};
  run.batch = {.virtual_nodes = 4, .micro_batches = 1, .micro_batch = 1};
  Use(run);
  const StepOutcome alone = RunStep({.cuda = Dtype::kBf16});
  for (const int members : {2, 3}) {
    const std::string what = absl::StrCat(members, " members");
    ExpectSameBits(alone, RunStep({.cuda = Dtype::kBf16, .workers = EvenShares(4, members), .group = true}), what);
  }
  ExpectSameBits(alone, RunStep({.in_place = true, .cuda = Dtype::kBf16, .workers = EvenShares(4, 2), .group = true}),
                 "copied from where they lie");
}

// What the daemon gives and gets is one model, not one for each member.
TEST_F(RelayExecutorTest, AGroupPushesEachPartOnce) {
  Use(RunOfSeveralChunks(Dtype::kF32, 4));
  const StepOutcome two = RunStep({.workers = EvenShares(4, 2)});
  const StepOutcome grouped = RunStep({.workers = EvenShares(4, 2), .group = true});
  ExpectSameBits(two, grouped, "two workers");
  int64_t parts = 0;
  for (const LayerSpec& layer : model_.layers) {
    for (const BlobUse& use : layer.blobs) parts += std::min<int64_t>(2, model_.blob(use.blob).num_chunks());
  }
  EXPECT_EQ(grouped.pushes, parts);
}

TEST_F(RelayExecutorTest, AGroupThatCannotCarryTheStepLetsEachGoAlone) {
  RunConfig run = RunOfSeveralChunks(Dtype::kF32, 4);
  Use(run);
  const StepOutcome alone = RunStep({});
  // A pass takes one vnode, and a member has two.
  ExpectSameBits(alone, RunStep({.max_pass_vnodes = 1, .workers = EvenShares(4, 2), .group = true}), "short passes");
}

TEST_F(RelayExecutorTest, AVnodeWhoseGradientIsNotFiniteIsNamedByTheWholeGroup) {
  Use(RunOfSeveralChunks(Dtype::kF32, 4));
  const std::unique_ptr<InProcessStore> store = NewStore();
  // A weight of the last block that overflows for everybody: each vnode is named by someone.
  std::vector<float>& master = masters_.at(3);
  master[static_cast<size_t>(model_.blobs[3].tensors.back().offset_elems)] = std::numeric_limits<float>::infinity();
  const std::unique_ptr<InProcessStore> broken = NewStore();
  StepOutcome outcome;
  RunAsGroup({.workers = EvenShares(4, 2), .group = true}, *broken, outcome);
  EXPECT_EQ(broken->NonFiniteVnodes(kStep).front(), 0);
}

TEST_F(RelayExecutorTest, WhenAMemberIsLostTheOthersFailAndGoOnAlone) {
  Use(RunOfSeveralChunks(Dtype::kF32, 4));
  const StepOutcome alone = RunStep({});
  const std::unique_ptr<InProcessStore> store = NewStore();
  const std::vector<std::vector<int>> shares = EvenShares(4, 2);
  const Way way = {.workers = shares, .group = true};
  Worker survivor(model_, run_, way, *store);
  StepOutcome outcome;
  {
    Worker lost(model_, run_, way, *store);
    std::vector<std::unique_ptr<Group>> groups = NewGroup({survivor.device.get(), lost.device.get()});
    // Its weights never come: it stays in its first layer.
    lost.transport.Cancel(absl::UnavailableError("it was killed"));
    std::thread dying([&] {
      Assignment assignment = Only(all_, shares[1]);
      assignment.group = GroupVnodes{.group = 1, .rank = 1, .vnodes = shares};
      EXPECT_FALSE(lost.executor->Run(assignment, groups[1].get()).ok());
      groups[1].reset();
    });
    Assignment assignment = Only(all_, shares[0]);
    assignment.group = GroupVnodes{.group = 1, .rank = 0, .vnodes = shares};
    EXPECT_THAT(survivor.executor->Run(assignment, groups[0].get()), StatusIs(absl::StatusCode::kAborted, "group"));
    dying.join();
  }
  // The daemon gives it everything, and it goes alone.
  const auto result = survivor.executor->Run(all_);
  ASSERT_OK(result);
  ASSERT_OK(survivor.transport.Flush());
  for (const VnodeRecord& record : result->records) outcome.records[record.vnode] = record;
  Collect(*store, outcome);
  ExpectSameBits(alone, outcome, "after the loss");
}

}  // namespace
}  // namespace eps::worker
