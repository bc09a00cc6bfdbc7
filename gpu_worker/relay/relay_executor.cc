#include "gpu_worker/relay/relay_executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/numeric/bf16.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/pushed_nodes.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/layer_runner.h"
#include "gpu_worker/relay/pull_clock.h"
#include "gpu_worker/relay/push_buffers.h"
#include "gpu_worker/relay/schedule.h"

namespace eps::worker {
namespace {

using Clock = std::chrono::steady_clock;

// A pass and what its steps need beside the arena. Lives until all streams are idle.
struct Pass {
  PassContext context;
  Version version;
  const std::vector<RelayStep>* steps = nullptr;
  absl::Span<const VnodeBatch> batches;  // one per vnode of the pass
  std::vector<LossRecord> records;       // one per vnode; filled from the out-stream
  std::map<int, size_t> pull_index;      // step -> index into the pull clock
  // By blob: where the host has its weights, and the transport need not copy them; empty: nowhere.
  std::vector<const std::byte*> in_place;
};

template <typename T>
absl::Span<const std::byte> AsBytes(absl::Span<const T> values) {
  return absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T));
}

class RelayExecutorImpl : public RelayExecutor {
 public:
  RelayExecutorImpl(Options options, ArenaMap arena)
      : options_(std::move(options)),
        model_(*options_.model),
        run_(*options_.run),
        plan_(options_.plan),
        device_(*options_.device),
        transport_(*options_.transport),
        arena_(std::move(arena)),
        shape_(MakeLayerShape(model_.config, run_.batch.micro_batch, run_.precision.wire,
                              device_.properties().compute_dtype)),
        layers_(model_, plan_, arena_, device_.kernels(), device_.stream(StreamId::kCompute)),
        push_buffers_(plan_.host_push_bytes) {
    flags_.resize(static_cast<size_t>(plan_.max_subtree_leaves()));
  }

  // Errors: RESOURCE_EXHAUSTED the host has not so much memory
  absl::Status TakeHostMemory() {
    EPS_ASSIGN_OR_RETURN(boundaries_, device_.NewHostMemory(plan_.host_boundary_bytes));
    // A device whose arena the host cannot address goes through host memory of its own.
    if (device_.properties().host_addressable) return absl::OkStatus();
    EPS_ASSIGN_OR_RETURN(staging_in_, device_.NewHostMemory(model_.max_layer_elems() * SizeOf(shape_.wire)));
    EPS_ASSIGN_OR_RETURN(staging_out_, device_.NewHostMemory(model_.max_layer_elems() * int64_t{sizeof(float)}));
    return absl::OkStatus();
  }

  absl::StatusOr<PassResult> Run(const Assignment& assignment) override;
  void Survey(Kernels& kernels) override;
  absl::StatusOr<std::vector<float>> NextTokenLogits(Version version, absl::Span<const int32_t> tokens) override;

 private:
  absl::Status Check(const Assignment& assignment) const;
  absl::Status RunPass(const Assignment& assignment, absl::Span<const VnodeBatch> batches, PassResult& result);
  absl::Status Execute(Pass& pass);
  const std::vector<RelayStep>& Schedule(const PassShape& shape);

  void Enqueue(int index, Pass& pass);
  void EnqueueWaits(const RelayStep& step, Pass& pass);
  void EnqueuePull(int index, const RelayStep& step, Pass& pass);
  void EnqueueLoadTokens(const RelayStep& step, const Pass& pass);
  void EnqueuePush(const RelayStep& step, const Pass& pass);
  // `destination`: null where the weights are read in place.
  absl::Status PullBlobs(size_t pull, const RelayStep& step, const Pass& pass, std::byte* destination);
  // Where the transport has the weights in this host's memory, nothing else copies them: kernels read them there, or one
  // copy brings them into the arena.
  void ReadInPlace(Pass& pass) const;
  absl::Span<const std::byte> InPlaceBytes(const Pass& pass, BlobId blob) const;
  void Push(const RelayStep& step, const Pass& pass, const std::byte* gradient, const std::byte* flags);

  absl::Span<std::byte> HostBoundary(int layer, const RelayStep& step, const Pass& pass) const;
  absl::Span<std::byte> HostGradient(const RelayStep& step, const Pass& pass) const;
  std::string Where(const RelayStep& step, const Pass& pass) const;
  // The device's statistics of the last pass, the wait for versions apart from the wait for pulls.
  std::array<double, kNumWaitCauses> TakeWaits();

  // Fixed after construction.
  const Options options_;
  const ModelSpec& model_;
  const RunConfig& run_;
  const RelayPlan& plan_;
  Device& device_;
  Transport& transport_;
  const ArenaMap arena_;
  const LayerShape shape_;
  LayerRunner layers_;

  HostMemory boundaries_;  // input of layer 1 .. N-1 of every micro-batch, one gradient each
  HostMemory staging_in_, staging_out_;
  std::vector<int32_t> flags_;  // of the push under way
  PushBuffers push_buffers_;
  std::vector<std::unique_ptr<Event>> events_;  // by step of a pass; grows to the longest pass
  std::map<std::pair<std::vector<int>, bool>, std::vector<RelayStep>> schedules_;
  PullClock pull_clock_;
};

absl::Status RelayExecutorImpl::Check(const Assignment& assignment) const {
  const size_t want = static_cast<size_t>(run_.batch.sequences_per_vnode() * model_.config.context);
  if (assignment.counted_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("counted tokens ", assignment.counted_tokens, ", must be >= 0"));
  }
  int last = -1;
  for (const VnodeBatch& batch : assignment.vnodes) {
    if (batch.vnode <= last || batch.vnode >= run_.batch.virtual_nodes) {
      return absl::InvalidArgumentError(
          absl::StrCat("vnode ", batch.vnode, " after ", last, ": must rise, below ", run_.batch.virtual_nodes));
    }
    last = batch.vnode;
    if (batch.tokens.size() != want || batch.labels.size() != want) {
      return absl::InvalidArgumentError(absl::StrCat("vnode ", batch.vnode, " has ", batch.tokens.size(),
                                                     " tokens and ", batch.labels.size(), " labels, want ", want));
    }
    for (size_t i = 0; i < want; ++i) {
      if (batch.tokens[i] < 0 || batch.tokens[i] >= model_.config.vocab) {
        return absl::InvalidArgumentError(absl::StrCat("vnode ", batch.vnode, ", token ", i, ": id ", batch.tokens[i],
                                                       ", the vocabulary has ", model_.config.vocab));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PassResult> RelayExecutorImpl::Run(const Assignment& assignment) {
  const std::string step = absl::StrCat("step ", assignment.step.value());
  EPS_RETURN_IF_ERROR_WITH(Check(assignment), step);
  PassResult result;
  const Clock::time_point start = Clock::now();
  const absl::Span<const VnodeBatch> batches = assignment.vnodes;
  const auto most = static_cast<size_t>(plan_.max_pass_vnodes);
  for (size_t first = 0; first < batches.size(); first += most) {
    EPS_RETURN_IF_ERROR(RunPass(assignment, batches.subspan(first, most), result));
  }
  result.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return result;
}

absl::Status RelayExecutorImpl::RunPass(const Assignment& assignment, absl::Span<const VnodeBatch> batches,
                                        PassResult& result) {
  PassShape shape{.vnodes = {},
                  .num_vnodes = run_.batch.virtual_nodes,
                  .micro_batches = run_.batch.micro_batches,
                  .gradients = run_.precision.gradients,
                  .expands = shape_.expands()};
  for (const VnodeBatch& batch : batches) shape.vnodes.push_back(batch.vnode);

  Pass pass;
  pass.context = {.shape = shape_,
                  .seed = model_.config.init_seed,
                  .step = assignment.step,
                  .vnodes = shape.vnodes,
                  .loss_scale = 1.0 / static_cast<double>(std::max<int64_t>(assignment.counted_tokens, 1)),
                  .gradients = run_.precision.gradients};
  pass.version = ReadVersion(assignment.step);
  ReadInPlace(pass);
  pass.steps = &Schedule(shape);
  pass.batches = batches;
  pass.records.resize(batches.size());
  const absl::Status status = Execute(pass);
  const std::array<double, kNumWaitCauses> waits = TakeWaits();
  EPS_RETURN_IF_ERROR(status);
  for (size_t cause = 0; cause < waits.size(); ++cause) result.compute_wait_seconds[cause] += waits[cause];
  for (size_t v = 0; v < batches.size(); ++v) {
    const LossRecord& record = pass.records[v];
    result.records.push_back({.vnode = batches[v].vnode,
                              .loss_sum = record.loss_sum,
                              .counted_tokens = record.counted,
                              .finite = record.finite != 0});
  }
  return absl::OkStatus();
}

void RelayExecutorImpl::Survey(Kernels& kernels) {
  const std::vector<int> vnodes = {0};
  LayerRunner(model_, plan_, arena_, kernels, device_.stream(StreamId::kCompute))
      .RunEach({.shape = shape_, .seed = model_.config.init_seed, .vnodes = vnodes});
}

absl::StatusOr<std::vector<float>> RelayExecutorImpl::NextTokenLogits(Version version,
                                                                      absl::Span<const int32_t> tokens) {
  const Gpt2Config& config = model_.config;
  if (tokens.empty() || static_cast<int64_t>(tokens.size()) > config.context) {
    return absl::InvalidArgumentError(absl::StrCat(tokens.size(), " tokens, must be 1 to ", config.context));
  }
  for (const int32_t token : tokens) {
    if (token < 0 || token >= config.vocab) {
      return absl::InvalidArgumentError(absl::StrCat("token id ", token, ", the vocabulary has ", config.vocab));
    }
  }
  const PassShape shape{.vnodes = {0},
                        .num_vnodes = run_.batch.virtual_nodes,
                        .micro_batches = 1,
                        .gradients = run_.precision.gradients,
                        .expands = shape_.expands(),
                        .forward_only = true};
  VnodeBatch batch;
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.labels.assign(tokens.size(), -100);
  std::vector<std::byte> logits(static_cast<size_t>(config.vocab * shape_.act_bytes()));

  Pass pass;
  pass.context = {.shape = shape_,
                  .step = StepId(version.value()),
                  .vnodes = shape.vnodes,
                  .training = false,
                  .logits = absl::MakeSpan(logits)};
  pass.context.shape.B = 1;
  pass.context.shape.T = static_cast<int64_t>(tokens.size());
  pass.version = version;
  ReadInPlace(pass);
  pass.steps = &Schedule(shape);
  pass.batches = absl::MakeConstSpan(&batch, 1);
  const absl::Status status = Execute(pass);
  TakeWaits();
  EPS_RETURN_IF_ERROR(status);

  std::vector<float> values(static_cast<size_t>(config.vocab));
  if (shape_.compute == Dtype::kF32) {
    std::memcpy(values.data(), logits.data(), logits.size());
    return values;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    Bf16 narrow;
    std::memcpy(&narrow, logits.data() + i * sizeof(narrow), sizeof(narrow));
    values[i] = ToFloat(narrow);
  }
  return values;
}

const std::vector<RelayStep>& RelayExecutorImpl::Schedule(const PassShape& shape) {
  // A worker's vnodes change only when workers come or go, so a few schedules serve a whole run.
  constexpr size_t kMostSchedules = 8;
  const std::pair<std::vector<int>, bool> key(shape.vnodes, shape.forward_only);
  const auto found = schedules_.find(key);
  if (found != schedules_.end()) return found->second;
  if (schedules_.size() >= kMostSchedules) schedules_.clear();
  return schedules_.emplace(key, BuildSchedule(model_, plan_, shape)).first->second;
}

absl::Status RelayExecutorImpl::Execute(Pass& pass) {
  const std::vector<RelayStep>& steps = *pass.steps;
  while (events_.size() < steps.size()) events_.push_back(device_.NewEvent());
  size_t num_pulls = 0;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].signals) events_[i]->Reset();
    if (steps[i].kind == RelayStep::Kind::kPull) pass.pull_index[static_cast<int>(i)] = num_pulls++;
  }
  pull_clock_.Start(num_pulls);
  for (size_t i = 0; i < steps.size(); ++i) Enqueue(static_cast<int>(i), pass);

  // Every stream is synchronised, failed or not: what is queued points into `pass`. The first error made is the
  // in-stream's or the out-stream's; the compute stream can only have caught one.
  absl::Status first;
  for (const StreamId id : {StreamId::kIn, StreamId::kOut, StreamId::kCompute}) {
    const absl::Status status = device_.stream(id).Synchronize();
    if (first.ok()) first = status;
  }
  if (!first.ok()) device_.Recover();
  return first;
}

void RelayExecutorImpl::EnqueueWaits(const RelayStep& step, Pass& pass) {
  Stream& stream = device_.stream(step.stream());
  for (const int other : step.waits_for) {
    const RelayStep& awaited = (*pass.steps)[static_cast<size_t>(other)];
    if (awaited.kind == RelayStep::Kind::kPull && step.stream() == StreamId::kCompute) {
      stream.HostCall([this, pull = pass.pull_index.at(other)] {
        pull_clock_.Arrived(pull, Clock::now());
        return absl::OkStatus();
      });
    }
    stream.Wait(*events_[static_cast<size_t>(other)], awaited.cause());
  }
}

void RelayExecutorImpl::Enqueue(int index, Pass& pass) {
  const RelayStep& step = (*pass.steps)[static_cast<size_t>(index)];
  Stream& out = device_.stream(StreamId::kOut);
  EnqueueWaits(step, pass);
  switch (step.kind) {
    case RelayStep::Kind::kPull:
      EnqueuePull(index, step, pass);
      break;
    case RelayStep::Kind::kLoadTokens:
      EnqueueLoadTokens(step, pass);
      break;
    case RelayStep::Kind::kLoadBoundary:
      out.CopyIn(Slot(arena_.boundaries, step.input), HostBoundary(step.layer.value(), step, pass));
      break;
    case RelayStep::Kind::kLoadGradient:
      out.CopyIn(Slot(arena_.boundaries, step.output), HostGradient(step, pass));
      break;
    case RelayStep::Kind::kStoreBoundary:
      out.CopyOut(HostBoundary(step.layer.value() + 1, step, pass), Slot(arena_.boundaries, step.output));
      break;
    case RelayStep::Kind::kStoreGradient:
      out.CopyOut(HostGradient(step, pass), Slot(arena_.boundaries, step.output));
      break;
    case RelayStep::Kind::kPush:
      EnqueuePush(step, pass);
      break;
    case RelayStep::Kind::kStoreRecord:
      out.CopyOut(absl::MakeSpan(reinterpret_cast<std::byte*>(&pass.records[static_cast<size_t>(step.vnode)]),
                                 sizeof(LossRecord)),
                  arena_.records + RelayPlan::RecordOffset(step.record));
      break;
    default:
      layers_.Run(step, pass.context);
  }
  if (step.signals) device_.stream(step.stream()).Record(*events_[static_cast<size_t>(index)]);
}

void RelayExecutorImpl::EnqueuePull(int index, const RelayStep& step, Pass& pass) {
  Stream& in = device_.stream(StreamId::kIn);
  const size_t pull = pass.pull_index.at(index);
  std::byte* slot = Slot(arena_.weights, step.weights);
  const bool direct = device_.properties().host_addressable;
  const bool in_place = !pass.in_place.empty();
  std::byte* destination = in_place ? nullptr : direct ? slot : staging_in_.bytes.data();
  in.HostCall([this, pull, &step, &pass, destination] {
    return Annotate(PullBlobs(pull, step, pass, destination), Where(step, pass));
  });
  if (direct) return;
  const int64_t elem_bytes = SizeOf(shape_.wire);
  const LayerSpec& layer = model_.layer(step.layer);
  if (!in_place) {
    in.CopyIn(slot, staging_in_.bytes.subspan(0, static_cast<size_t>(layer.num_elems * elem_bytes)));
    return;
  }
  // One copy, from where the daemon has them.
  for (const BlobUse& use : layer.blobs) {
    in.CopyIn(slot + use.offset_elems * elem_bytes, InPlaceBytes(pass, use.blob));
  }
}

absl::Span<const std::byte> RelayExecutorImpl::InPlaceBytes(const Pass& pass, BlobId blob) const {
  return absl::MakeConstSpan(pass.in_place[static_cast<size_t>(blob.value())],
                             static_cast<size_t>(model_.blob(blob).num_elems * SizeOf(shape_.wire)));
}

void RelayExecutorImpl::ReadInPlace(Pass& pass) const {
  std::vector<const std::byte*> addresses;
  for (const BlobSpec& blob : model_.blobs) {
    addresses.push_back(transport_.InPlace(blob.id, pass.version));
    if (addresses.back() == nullptr) return;
  }
  if (device_.properties().host_addressable) pass.context.in_place = addresses;
  pass.in_place = std::move(addresses);
}

absl::Status RelayExecutorImpl::PullBlobs(size_t pull, const RelayStep& step, const Pass& pass,
                                          std::byte* destination) {
  const int64_t elem_bytes = SizeOf(shape_.wire);
  for (const BlobUse& use : model_.layer(step.layer).blobs) {
    const BlobSpec& blob = model_.blob(use.blob);
    const Clock::time_point begin = Clock::now();
    const absl::StatusOr<PullTiming> timing =
        destination == nullptr ? transport_.Await(use.blob, pass.version)
                               : transport_.Pull(use.blob, pass.version,
                                                 absl::MakeSpan(destination + use.offset_elems * elem_bytes,
                                                                static_cast<size_t>(blob.num_elems * elem_bytes)));
    if (!timing.ok()) return Annotate(timing.status(), absl::StrCat("pull of blob ", blob.name));
    if (destination == nullptr) device_.ExpectCopies(InPlaceBytes(pass, use.blob));
    pull_clock_.Pulled(pull, begin, timing->version_wait_seconds, Clock::now());
  }
  return absl::OkStatus();
}

void RelayExecutorImpl::EnqueueLoadTokens(const RelayStep& step, const Pass& pass) {
  Stream& out = device_.stream(StreamId::kOut);
  const VnodeBatch& batch = pass.batches[static_cast<size_t>(step.vnode)];
  const auto rows = static_cast<size_t>(pass.context.shape.M());
  const size_t first = static_cast<size_t>(step.micro_batch) * rows;
  std::byte* slot = Slot(arena_.tokens, step.tokens);
  out.CopyIn(slot, AsBytes(absl::MakeConstSpan(batch.tokens).subspan(first, rows)));
  out.CopyIn(slot + pass.context.shape.labels_offset_bytes(),
             AsBytes(absl::MakeConstSpan(batch.labels).subspan(first, rows)));
}

void RelayExecutorImpl::EnqueuePush(const RelayStep& step, const Pass& pass) {
  Stream& out = device_.stream(StreamId::kOut);
  const std::byte* gradient = Slot(arena_.pushes, step.push);
  const std::byte* flags = arena_.records + plan_.FlagsOffset(step.push);
  if (!device_.properties().host_addressable) {
    const int64_t num_bytes =
        model_.layer(step.layer).num_elems * SizeOf(PushedDtype(step.node, pass.context.gradients));
    out.CopyOut(staging_out_.bytes.subspan(0, static_cast<size_t>(num_bytes)), gradient);
    out.CopyOut(absl::MakeSpan(reinterpret_cast<std::byte*>(flags_.data()),
                               static_cast<size_t>(step.node.count) * sizeof(int32_t)),
                flags);
    gradient = staging_out_.bytes.data();
    flags = reinterpret_cast<const std::byte*>(flags_.data());
  }
  out.HostCall([this, &step, &pass, gradient, flags] {
    Push(step, pass, gradient, flags);
    return absl::OkStatus();
  });
}

// One buffer for the layer, one contribution for each of its blobs. The buffer is taken here, in stream order, so that
// only gradients that are really under way hold memory; the transport's own, where it has any, is sent without a copy.
void RelayExecutorImpl::Push(const RelayStep& step, const Pass& pass, const std::byte* gradient,
                             const std::byte* flags) {
  const LayerSpec& layer = model_.layer(step.layer);
  const Dtype dtype = PushedDtype(step.node, pass.context.gradients);
  const int64_t elem_bytes = SizeOf(dtype);
  const int64_t num_bytes = layer.num_elems * elem_bytes;
  std::optional<PushMemory> own = transport_.NewPushMemory(num_bytes);
  const PushMemory buffer = own.has_value() ? *std::move(own) : push_buffers_.Acquire(num_bytes);
  std::memcpy(buffer.bytes.data(), gradient, buffer.bytes.size());

  int nonfinite_vnode = -1;
  for (int leaf = step.node.count - 1; leaf >= 0; --leaf) {
    int32_t finite = 0;
    std::memcpy(&finite, flags + static_cast<size_t>(leaf) * sizeof(finite), sizeof(finite));
    if (finite == 0) nonfinite_vnode = step.node.first + leaf;
  }
  for (const BlobUse& use : layer.blobs) {
    transport_.Push({.step = pass.context.step,
                     .blob = use.blob,
                     .use = use.use,
                     .node = step.node,
                     .dtype = dtype,
                     .nonfinite_vnode = nonfinite_vnode,
                     .payload = absl::MakeConstSpan(buffer.bytes)
                                    .subspan(static_cast<size_t>(use.offset_elems * elem_bytes),
                                             static_cast<size_t>(model_.blob(use.blob).num_elems * elem_bytes)),
                     .owner = buffer.owner});
  }
}

absl::Span<std::byte> RelayExecutorImpl::HostBoundary(int layer, const RelayStep& step, const Pass& pass) const {
  const int64_t items = int64_t{plan_.max_pass_vnodes} * run_.batch.micro_batches;
  const int64_t item = int64_t{step.vnode} * run_.batch.micro_batches + step.micro_batch;
  return absl::MakeSpan(boundaries_.bytes.data() + ((layer - 1) * items + item) * shape_.boundary_bytes(),
                        static_cast<size_t>(pass.context.shape.boundary_bytes()));
}

absl::Span<std::byte> RelayExecutorImpl::HostGradient(const RelayStep& step, const Pass& pass) const {
  return HostBoundary(static_cast<int>(model_.layers.size()), step, pass);  // behind the last layer's input
}

std::string RelayExecutorImpl::Where(const RelayStep& step, const Pass& pass) const {
  const bool is_head = model_.layer(step.layer).kind == LayerKind::kHead;
  return absl::StrCat("step ", pass.context.step.value(), ", layer ", model_.layer(step.layer).name, ", ",
                      step.backward && !is_head ? "backward" : "forward");
}

std::array<double, kNumWaitCauses> RelayExecutorImpl::TakeWaits() {
  for (const StreamId id : {StreamId::kIn, StreamId::kOut}) device_.stream(id).TakeStats();
  std::array<double, kNumWaitCauses> waits = device_.stream(StreamId::kCompute).TakeStats().wait_seconds;
  double& pull = waits[static_cast<size_t>(WaitCause::kPull)];
  const double version = std::min(pull, pull_clock_.VersionWaitSeconds());
  pull -= version;
  waits[static_cast<size_t>(WaitCause::kVersion)] += version;
  return waits;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RelayExecutor>> RelayExecutor::Create(Options options) {
  EPS_CHECK(options.model != nullptr && options.run != nullptr && options.device != nullptr &&
            options.transport != nullptr);
  EPS_ASSIGN_OR_RETURN(ArenaMap arena, MapArena(options.plan, *options.device));
  auto executor = std::make_unique<RelayExecutorImpl>(std::move(options), std::move(arena));
  EPS_RETURN_IF_ERROR(executor->TakeHostMemory());
  return executor;
}

}  // namespace eps::worker
