#ifndef EPS_GPU_WORKER_RELAY_RELAY_EXECUTOR_TESTING_H_
#define EPS_GPU_WORKER_RELAY_RELAY_EXECUTOR_TESTING_H_

#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/ipc/shared_segment.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/spec/graph_use.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/cuda/emulator/emulated_runtime.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/plan/arena_layout.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/relay/forward_witness.h"
#include "gpu_worker/relay/relay_executor.h"
#include "gpu_worker/transport/in_process.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {

// What the tests of the executor share: runs, workers in one process, and the steps that they make.

inline constexpr StepId kStep(5);

// A small run with odd sizes: T, C and the vocabulary are no multiples of any vector.
RunConfig SmallRun(Dtype dtype = Dtype::kF32);

RunConfig SmallLlama(Dtype dtype);

// Which ends the way back early, splits layers, or leaves the head alone to train.
std::vector<RunConfig> FrozenRuns(Dtype dtype);

// With quantized matrices.
std::vector<RunConfig> QuantizedRuns(Dtype dtype);

RunConfig LlamaRun(Dtype dtype);

// The same without a window, and with experts.
RunConfig ExpertsRun(Dtype dtype);

RunConfig BertRun(Dtype dtype);

// Of padded samples, so that attention has documents.
RunConfig ClassifierRun(Dtype dtype);

// Of preferences: against the model without its adapters, which have dropout; and whole models, without one.
RunConfig DpoRun(Dtype dtype);
RunConfig SimPoRun(Dtype dtype);

// Larger than a chunk, so that members have parts of a blob, and a vocabulary that makes parts of very different sizes.
RunConfig RunOfSeveralChunks(Dtype dtype, int virtual_nodes);

// Weights large enough that every gradient matters, the same for every test.
std::vector<std::vector<float>> Masters(const ModelSpec& model, Dtype wire);

Assignment MakeAssignment(const RunConfig& run);

Assignment Only(const Assignment& all, const std::vector<int>& vnodes);

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
  InPlaceTransport(const ModelSpec* model, Dtype wire, InProcessTransport* inner)
      : model_(*model), wire_(wire), inner_(*inner) {
    for (const BlobSpec& blob : model->blobs) places_.emplace_back(blob.wire_bytes(wire));
  }
  const std::byte* InPlace(BlobId blob, Version) const override { return Place(blob).read().data(); }
  absl::StatusOr<PullTiming> Await(BlobId blob, Version version, ChunkRange chunks) override {
    const BlobSpec& spec = model_.blob(blob);
    return inner_.Pull(blob, version, chunks,
                       Place(blob).written().subspan(static_cast<size_t>(spec.part_first_byte(chunks, wire_)),
                                                     static_cast<size_t>(spec.part_bytes(chunks, wire_))));
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
  const Dtype wire_;
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

  KernelSizes kernels() const;
  std::unique_ptr<Device> MakeDevice(int64_t arena_bytes, size_t worker) const;
};

// A worker: a device, a plan, an executor on a store.
struct Worker {
  Worker(const ModelSpec& model, const RunConfig& run_in, const Way& way, InProcessStore& store, size_t index = 0);
  RunConfig run;
  InProcessTransport transport;
  InPlaceTransport in_place;
  RelayPlan plan;
  std::unique_ptr<Device> device;
  std::unique_ptr<RelayExecutor> executor;
};

// What the first of these workers would choose.
Choices ChoicesOf(const ModelSpec& model, const RunConfig& run, const Way& way, ChoiceRule rule);

struct StepOutcome {
  std::map<int, VnodeRecord> records;
  std::vector<std::vector<std::vector<float>>> use_gradients;  // by blob, use
  int64_t pulls = 0, pushes = 0;
};

class RelayExecutorTest : public ::testing::Test {
 protected:
  void Use(const RunConfig& run);
  // A run whose step drops just these of its blocks.
  void UseWithDropped(RunConfig run, const std::vector<LayerId>& dropped);
  std::unique_ptr<InProcessStore> NewStore();
  void Publish(InProcessStore& store, StepId step = kStep);

  StepOutcome RunStep(const Way& way);
  // Several, with an evaluation behind each, of one executor and the same weights.
  std::vector<StepOutcome> RunSteps(const Way& way);
  // Each worker in a thread of its own.
  void RunAsGroup(const Way& way, InProcessStore& store, StepOutcome& outcome);
  static std::vector<std::unique_ptr<Group>> NewGroup(const std::vector<Device*>& devices, bool nccl = false);
  void Collect(const InProcessStore& store, StepOutcome& outcome, StepId step = kStep);

  void ExpectSameBits(const StepOutcome& a, const StepOutcome& b, const std::string& what);

  // Of every tensor that is not frozen, by "NAME use N".
  std::map<std::string, std::vector<float>> ByTensor(const StepOutcome& outcome) const;

  // Every tensor of every use against the fp64 reference: the error of the whole tensor relative to its norm.
  void ExpectNearReference(const StepOutcome& got, double tolerance, double loss_tolerance = 1e-5);
  void ExpectNear(const LayerSpec& layer, const BlobUse& use, const TensorSpec& tensor,
                  const std::vector<double>& want_slot, const std::vector<float>& got_blob, double tolerance);

  RunConfig run_;
  ModelSpec model_;
  std::vector<std::vector<float>> masters_;
  Assignment all_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_RELAY_EXECUTOR_TESTING_H_
