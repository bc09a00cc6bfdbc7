#include "gpu_worker/relay/relay_executor.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/byte_size.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/rotary.h"
#include "common/schedule/expert_rows.h"
#include "common/tensor/to_floats.h"
#include "gpu_worker/layers/block.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/assignment_check.h"
#include "gpu_worker/relay/compute_waits.h"
#include "gpu_worker/relay/gradient_pusher.h"
#include "gpu_worker/relay/layer_runner.h"
#include "gpu_worker/relay/pass_memory.h"
#include "gpu_worker/relay/pass_trace.h"
#include "gpu_worker/relay/pull_clock.h"
#include "gpu_worker/relay/stage_tokens.h"
#include "gpu_worker/relay/step_label.h"
#include "gpu_worker/relay/weight_puller.h"

namespace eps::worker {
namespace {

using Clock = std::chrono::steady_clock;

// A pass and what its steps need beside the arena. Lives until all streams are idle.
struct Pass {
  PassContext context;
  const std::vector<RelayStep>* steps = nullptr;
  std::deque<StepLabel> labels;          // by step
  absl::Span<const VnodeBatch> batches;  // one per vnode of the pass
  Group* group = nullptr;                // null: alone; else context.group says who does what
};

template <typename T>
absl::Span<std::byte> AsBytes(absl::Span<T> values) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T));
}

class RelayExecutorImpl : public RelayExecutor {
 public:
  RelayExecutorImpl(Options options, ArenaMap arena, const LayerShape& shape, PassMemory memory, HostMemory witnessed)
      : options_(std::move(options)),
        model_(*options_.model),
        run_(*options_.run),
        plan_(options_.plan),
        device_(*options_.device),
        transport_(*options_.transport),
        arena_(std::move(arena)),
        shape_(shape),
        told_(ToldExpertsOf(model_.config, run_.batch.virtual_nodes)),
        memory_(std::move(memory)),
        witnessed_(std::move(witnessed)),
        layers_(model_, plan_, arena_, memory_.start_values(), device_.kernels(), device_.stream(StreamId::kCompute)),
        weights_(model_, device_, transport_, arena_, shape_.wire, pull_clock_),
        gradients_(model_, plan_, device_, transport_, arena_, memory_.flags(), options_.push_piece_bytes,
                   options_.is_awaited) {
    if (options_.trace == nullptr) return;
    trace_.emplace(options_.trace, &model_);
    for (const StreamId id : kStreams) device_.stream(id).KeepSpans(true);
  }

  absl::StatusOr<PassResult> Run(const Assignment& assignment, Group* group) override;
  void Survey(Kernels& kernels) override;
  absl::StatusOr<std::vector<float>> NextTokenLogits(Version version, absl::Span<const int32_t> tokens) override;

 private:
  // Null: this step goes alone.
  absl::StatusOr<std::unique_ptr<GroupParts>> PartsOf(const Assignment& assignment);
  absl::Status RunPass(const Assignment& assignment, absl::Span<const VnodeBatch> batches, Group* group,
                       const GroupParts* parts, PassResult& result);
  // Forward through the model without its adapters, for what preferences are compared with. Into result: its waits.
  absl::Status RunReference(const Assignment& assignment, absl::Span<const VnodeBatch> batches, PassResult& result);
  absl::Status Execute(Pass& pass);
  // The same, and adds what compute waited.
  absl::Status Execute(Pass& pass, PassResult& result);
  // Of a step without a group, and with every block; evaluates: it goes forward alone.
  PassShape ShapeOf(absl::Span<const VnodeBatch> batches, bool evaluates) const;
  const std::vector<RelayStep>& Schedule(const PassShape& shape);

  void Enqueue(size_t index, const Pass& pass);
  void EnqueueWaits(const RelayStep& step, const Pass& pass);
  void EnqueueWitness(const RelayStep& step, const Pass& pass);
  void EnqueueLoadTokens(const RelayStep& step, const Pass& pass);
  void EnqueueStoreReference(const RelayStep& step, const Pass& pass);
  void EnqueueStoreFirstRows(const RelayStep& step, const Pass& pass);
  // Of the last pass's vnode `v`, once all streams are idle.
  ExpertRows ExpertRowsOf(size_t v, absl::Span<const LayerId> dropped) const;

  // The step's micro-batch, of those of the pass.
  int64_t Item(const RelayStep& step) const {
    return int64_t{step.vnode} * run_.batch.micro_batches + step.micro_batch;
  }
  static int64_t BlockOf(LayerId layer) { return layer.value() - 1; }  // the embedding comes first
  absl::Span<std::byte> HostBoundary(const RelayStep& step, const Pass& pass) const {
    return memory_.Boundary(step.host, pass.context.shape);
  }
  // The device's statistics of the last pass, whose labels are still there; the waits for versions, and for room, apart
  // from those for pulls, and for the out-stream.
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
  const ToldExperts told_;
  const PassMemory memory_;
  const HostMemory witnessed_;  // what a layer made, for the witness; empty without one
  LayerRunner layers_;

  PullClock pull_clock_;
  WeightPuller weights_;
  GradientPusher gradients_;
  std::vector<std::unique_ptr<Event>> events_;  // by step of a pass; grows to the longest pass
  using ScheduleKey =                           // what differs between the passes of a run
      std::tuple<std::vector<int>, bool, bool, int, std::vector<LayerId>>;
  std::map<ScheduleKey, std::vector<RelayStep>> schedules_;
  std::vector<TimeSpan> room_waits_;  // of the out-stream, in the last pass
  Clock::time_point computed_at_;     // when compute had done all of it
  std::optional<PassTrace> trace_;
  absl::Status group_not_used_;  // why, the last time: it is told once
};

absl::StatusOr<std::unique_ptr<GroupParts>> RelayExecutorImpl::PartsOf(const Assignment& assignment) {
  if (!assignment.group.has_value()) return nullptr;
  absl::StatusOr<GroupParts> parts =
      GroupParts::Make(model_, *assignment.group, BoundsOf(plan_, run_.precision.gradients));
  if (parts.ok()) return std::make_unique<GroupParts>(*std::move(parts));
  if (!absl::IsFailedPrecondition(parts.status())) return parts.status();
  if (std::exchange(group_not_used_, parts.status()) != parts.status()) {
    LogWarning("group_not_used", {{"step", assignment.step.value()}, {"why", parts.status().message()}});
  }
  return nullptr;
}

absl::StatusOr<PassResult> RelayExecutorImpl::Run(const Assignment& assignment, Group* group) {
  const std::string step = absl::StrCat("step ", assignment.step.value());
  EPS_RETURN_IF_ERROR_WITH(CheckAssignment(assignment, model_, run_, shape_), step);
  EPS_CHECK(!assignment.evaluation_round.has_value() || !assignment.group.has_value());
  PassResult result;
  const Clock::time_point start = Clock::now();
  const absl::Span<const VnodeBatch> batches = assignment.vnodes;
  const auto most = static_cast<size_t>(plan_.max_pass_vnodes);
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<GroupParts> parts, PartsOf(assignment));
  if (parts == nullptr) group = nullptr;
  EPS_CHECK(parts == nullptr || group != nullptr);
  for (size_t first = 0; first < batches.size(); first += most) {
    gradients_.BeginPass(/*is_last=*/first + most >= batches.size());
    EPS_RETURN_IF_ERROR(RunPass(assignment, batches.subspan(first, most), group, parts.get(), result));
  }
  const TimeSpan time = {start, Clock::now()};
  result.seconds = std::chrono::duration<double>(time.end - time.begin).count();
  if (trace_.has_value()) {
    trace_->AddAssignment(assignment.step, assignment.evaluation_round.has_value(), batches.size(), time);
  }
  return result;
}

absl::Status RelayExecutorImpl::RunPass(const Assignment& assignment, absl::Span<const VnodeBatch> batches,
                                        Group* group, const GroupParts* parts, PassResult& result) {
  const bool evaluates = assignment.evaluation_round.has_value();
  PassShape shape = ShapeOf(batches, evaluates);
  shape.group_rounds = parts == nullptr ? 0 : parts->rounds();
  shape.dropped = assignment.dropped;
  if (run_.preferences.has_reference()) EPS_RETURN_IF_ERROR(RunReference(assignment, batches, result));

  Pass pass;
  pass.context = {
      .shape = shape_,
      .seed = model_.config.init_seed,
      .step = assignment.step,
      .vnodes = shape.vnodes,
      .token_scale = assignment.loss_scale / static_cast<double>(std::max<int64_t>(assignment.counted_tokens, 1)),
      .expert_balance = model_.config.experts.balance * assignment.loss_scale /
                        static_cast<double>(int64_t{run_.batch.virtual_nodes} * run_.batch.micro_batches),
      .gradients = run_.precision.gradients,
      .training = !evaluates,
      .group = parts};
  pass.group = group;
  EPS_ASSIGN_OR_RETURN(pass.context.weights, weights_.Find(ReadVersion(assignment.step)));
  pass.steps = &Schedule(shape);
  pass.batches = batches;
  EPS_RETURN_IF_ERROR(Execute(pass, result));
  if (group != nullptr) EPS_RETURN_IF_ERROR(group->status());
  for (size_t v = 0; v < batches.size(); ++v) {
    const LossRecord& record = memory_.records()[v];
    result.records.push_back({.vnode = batches[v].vnode,
                              .loss_sum = record.loss_sum,
                              .counted_tokens = record.counted,
                              .finite = record.finite != 0,
                              .correct = record.correct,
                              .chosen_reward = record.chosen_reward,
                              .rejected_reward = record.rejected_reward,
                              .expert_rows = evaluates ? ExpertRows() : ExpertRowsOf(v, shape.dropped)});
  }
  return absl::OkStatus();
}

PassShape RelayExecutorImpl::ShapeOf(absl::Span<const VnodeBatch> batches, bool evaluates) const {
  PassShape shape{.vnodes = {},
                  .num_vnodes = run_.batch.virtual_nodes,
                  .micro_batches = run_.batch.micro_batches,
                  .gradients = run_.precision.gradients,
                  .expands = shape_.expands_blocks(),
                  .has_documents = shape_.has_documents,
                  .forward_only = evaluates,
                  .evaluates = evaluates};
  for (const VnodeBatch& batch : batches) shape.vnodes.push_back(batch.vnode);
  return shape;
}

absl::Status RelayExecutorImpl::RunReference(const Assignment& assignment, absl::Span<const VnodeBatch> batches,
                                             PassResult& result) {
  const PassShape shape = ShapeOf(batches, /*evaluates=*/true);
  Pass pass;
  pass.context = {.shape = shape_,
                  .seed = model_.config.init_seed,
                  .step = assignment.step,
                  .vnodes = shape.vnodes,
                  .training = false,
                  .has_adapters = false};
  EPS_ASSIGN_OR_RETURN(pass.context.weights, weights_.Find(ReadVersion(assignment.step)));
  pass.steps = &Schedule(shape);
  pass.batches = batches;
  return Execute(pass, result);
}

void RelayExecutorImpl::Survey(Kernels& kernels) {
  const std::vector<int> vnodes = {0};
  LayerRunner runner(model_, plan_, arena_, memory_.start_values(), kernels, device_.stream(StreamId::kCompute));
  // With dropout a residual is added behind its product, without it within: a run has both once it evaluates, which a
  // resume may begin. Products that add to gradients are others than those that start them.
  for (const bool training : {true, false}) {
    for (const bool starts_gradient : {true, false}) {
      if (!starts_gradient && run_.batch.micro_batches == 1) continue;
      runner.RunEach({.shape = shape_, .seed = model_.config.init_seed, .vnodes = vnodes, .training = training},
                     starts_gradient);
    }
  }
  if (!run_.preferences.has_reference()) return;
  runner.RunEach({.shape = shape_, .vnodes = vnodes, .training = false, .has_adapters = false},
                 /*starts_gradient=*/false);
}

absl::StatusOr<std::vector<float>> RelayExecutorImpl::NextTokenLogits(Version version,
                                                                      absl::Span<const int32_t> tokens) {
  const ModelConfig& config = model_.config;
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
                        .expands = shape_.expands_blocks(),
                        .forward_only = true};
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  // What stands behind a text none of its rows sees, if attention is causal.
  const int64_t multiple = shape_.is_causal ? device_.properties().length_multiple : 1;
  const int64_t length = std::min<int64_t>(RoundUp(num_tokens, multiple), config.context);
  VnodeBatch batch;
  batch.tokens.assign(tokens.begin(), tokens.end());
  batch.tokens.resize(static_cast<size_t>(length), tokens.back());
  batch.labels.assign(batch.tokens.size(), kNotCounted);
  std::vector<std::byte> logits(static_cast<size_t>(config.num_outputs() * shape_.act_bytes()));

  Pass pass;
  pass.context = {.shape = shape_,
                  .step = StepId(version.value()),
                  .vnodes = shape.vnodes,
                  .training = false,
                  .logits = absl::MakeSpan(logits),
                  .logits_row = shape_.is_classifier() ? 0 : num_tokens - 1};
  pass.context.shape.has_documents = false;
  pass.context.shape.B = 1;
  pass.context.shape.T = length;
  EPS_ASSIGN_OR_RETURN(pass.context.weights, weights_.Find(version));
  pass.steps = &Schedule(shape);
  pass.batches = absl::MakeConstSpan(&batch, 1);
  const absl::Status status = Execute(pass);
  TakeWaits();
  EPS_RETURN_IF_ERROR(status);

  return ToFloats(logits, shape_.compute);
}

const std::vector<RelayStep>& RelayExecutorImpl::Schedule(const PassShape& shape) {
  // A worker's vnodes change only when workers come or go, or differ in speed, so a few schedules serve a whole run.
  // With layers dropped each step has its own, which takes milliseconds to build, and is not seen again.
  const size_t most_schedules = run_.layer_drop.is_on() ? 2 : 8;
  const ScheduleKey key(shape.vnodes, shape.forward_only, shape.evaluates, shape.group_rounds, shape.dropped);
  const auto found = schedules_.find(key);
  if (found != schedules_.end()) return found->second;
  if (schedules_.size() >= most_schedules) schedules_.clear();
  std::vector<RelayStep>& steps = schedules_.emplace(key, BuildSchedule(model_, plan_, shape)).first->second;
  if (options_.alter_schedule) options_.alter_schedule(model_, plan_, steps);
  return steps;
}

absl::Status RelayExecutorImpl::Execute(Pass& pass) {
  const std::vector<RelayStep>& steps = *pass.steps;
  while (events_.size() < steps.size()) events_.push_back(device_.NewEvent());
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].signals) events_[i]->Reset();
  }
  pull_clock_.Start();
  StageTokens(steps, pass.batches, pass.context.shape, run_.batch.micro_batches, memory_);
  for (const RelayStep& step : steps) pass.labels.emplace_back(&model_, pass.context.step, &step);
  for (size_t i = 0; i < steps.size(); ++i) Enqueue(i, pass);
  device_.stream(StreamId::kCompute).HostCall([this] {
    computed_at_ = Clock::now();
    return absl::OkStatus();
  });
  if (trace_.has_value()) {  // what a stream does ends with its last step, whenever it is asked
    for (const StreamId id : kStreams) device_.stream(id).SetLabel(nullptr);
  }

  // Every stream is synchronised, failed or not: what is queued points into `pass`. What comes over the wire are the
  // in-stream's and the out-stream's host calls: the compute stream catches those errors, and may itself have one of
  // the device alone.
  // In a group the out-stream is first: where compute has failed it is the one that learns of it without the other
  // members, who may be waiting for what this one does not do any more. It may know no more than that the group has
  // ended: where it was this worker's own error that ended it, another stream has that.
  const auto order = pass.group == nullptr ? std::array{StreamId::kIn, StreamId::kOut, StreamId::kCompute}
                                           : std::array{StreamId::kOut, StreamId::kIn, StreamId::kCompute};
  absl::Status first;
  for (const StreamId id : order) {
    const absl::Status status = EndOnError(pass.group, device_.stream(id).Synchronize());
    const bool is_cause = absl::IsAborted(first) && !status.ok() && !absl::IsAborted(status);
    if (first.ok() || is_cause) first = status;
  }
  room_waits_ = gradients_.EndPass();
  if (!first.ok()) device_.Recover();
  return first;
}

absl::Status RelayExecutorImpl::Execute(Pass& pass, PassResult& result) {
  const absl::Status status = Execute(pass);
  const std::array<double, kNumWaitCauses> waits = TakeWaits();
  EPS_RETURN_IF_ERROR(status);
  for (size_t cause = 0; cause < waits.size(); ++cause) result.compute_wait_seconds[cause] += waits[cause];
  return absl::OkStatus();
}

void RelayExecutorImpl::EnqueueWaits(const RelayStep& step, const Pass& pass) {
  Stream& stream = device_.stream(step.stream());
  for (const int other : step.waits_for) {
    const RelayStep& awaited = (*pass.steps)[static_cast<size_t>(other)];
    stream.Wait(*events_[static_cast<size_t>(other)], awaited.cause());
  }
}

void RelayExecutorImpl::Enqueue(size_t index, const Pass& pass) {
  const RelayStep& step = (*pass.steps)[index];
  Stream& out = device_.stream(StreamId::kOut);
  device_.stream(step.stream()).SetLabel(&pass.labels[index]);
  EnqueueWaits(step, pass);
  switch (step.kind) {
    case RelayStep::Kind::kPull:
      weights_.Enqueue(step, pass.context, pass.group);
      break;
    case RelayStep::Kind::kLoadTokens:
    case RelayStep::Kind::kLoadDocuments:
      EnqueueLoadTokens(step, pass);
      break;
    case RelayStep::Kind::kLoadBoundary:
      out.CopyIn(Slot(arena_.boundaries, step.input), HostBoundary(step, pass));
      break;
    case RelayStep::Kind::kLoadGradient:
      out.CopyIn(Slot(arena_.boundaries, step.output), HostBoundary(step, pass));
      break;
    case RelayStep::Kind::kStoreBoundary:
      out.CopyOut(HostBoundary(step, pass), Slot(arena_.boundaries, step.output));
      break;
    case RelayStep::Kind::kStoreGradient:
      out.CopyOut(HostBoundary(step, pass), Slot(arena_.boundaries, step.output));
      break;
    case RelayStep::Kind::kStoreInner:
      out.CopyOut(memory_.Inner(step.host), Slot(arena_.inners, step.inner));
      break;
    case RelayStep::Kind::kLoadInner:
      device_.stream(StreamId::kIn).CopyIn(Slot(arena_.inners, step.inner), memory_.Inner(step.host));
      break;
    case RelayStep::Kind::kPush:
      gradients_.EnqueuePush(step, pass.context);
      break;
    case RelayStep::Kind::kExchange:
      gradients_.EnqueueExchange(step, pass.context, *pass.group);
      break;
    case RelayStep::Kind::kPushPart:
      gradients_.EnqueuePushPart(step, pass.context, *pass.group);
      break;
    case RelayStep::Kind::kStoreRecord:
      out.CopyOut(AsBytes(memory_.records().subspan(static_cast<size_t>(step.vnode), 1)),
                  arena_.records + RelayPlan::RecordOffset(step.record));
      break;
    default:
      layers_.Run(step, pass.context);
      if (step.kind == RelayStep::Kind::kLoss && !pass.context.has_adapters) EnqueueStoreReference(step, pass);
      if (step.kind != RelayStep::Kind::kForward) break;
      if (options_.witness != nullptr) EnqueueWitness(step, pass);
      if (told_.size() > 0) EnqueueStoreFirstRows(step, pass);
  }
  if (step.signals) device_.stream(step.stream()).Record(*events_[index]);
}

// On the compute stream, so that no step has to wait for it.
void RelayExecutorImpl::EnqueueWitness(const RelayStep& step, const Pass& pass) {
  if (!pass.context.training) return;
  Stream& compute = device_.stream(StreamId::kCompute);
  compute.CopyOut(witnessed_.bytes, Slot(arena_.boundaries, step.output));
  compute.HostCall([this, &step, &pass] {
    options_.witness->OnForward(pass.context.step, step.layer, pass.context.vnodes[static_cast<size_t>(step.vnode)],
                                step.micro_batch, witnessed_.bytes);
    return absl::OkStatus();
  });
}

void RelayExecutorImpl::EnqueueLoadTokens(const RelayStep& step, const Pass& pass) {
  const LayerShape& shape = pass.context.shape;
  absl::Span<const std::byte> tokens = memory_.Tokens(Item(step), shape);
  std::byte* to = Slot(arena_.tokens, step.tokens);
  if (step.kind == RelayStep::Kind::kLoadDocuments) {  // behind all else
    tokens.remove_prefix(static_cast<size_t>(shape.document_first_offset_bytes()));
    to += shape.document_first_offset_bytes();
  }
  device_.stream(step.stream()).CopyIn(to, tokens);
}

// With its tokens, as the pass that comes next loads them.
void RelayExecutorImpl::EnqueueStoreReference(const RelayStep& step, const Pass& pass) {
  const LayerShape& shape = pass.context.shape;
  const auto offset = static_cast<size_t>(shape.reference_offset_bytes());
  device_.stream(StreamId::kCompute)
      .CopyOut(memory_.Tokens(Item(step), shape).subspan(offset, static_cast<size_t>(shape.reference_bytes())),
               Slot(arena_.tokens, step.tokens) + offset);
}

// A copy, and no kernel that adds it up: with an address for each layer in it a layer's calls would not be those of
// another any more, as graphs want them (ComputeGraphs). On the compute stream, which reuses the scratch at once.
void RelayExecutorImpl::EnqueueStoreFirstRows(const RelayStep& step, const Pass& pass) {
  if (!pass.context.training || model_.layer(step.layer).kind != LayerKind::kBlock) return;
  device_.stream(StreamId::kCompute)
      .CopyOut(AsBytes(memory_.FirstRows(BlockOf(step.layer), Item(step))),
               arena_.scratch + BlockForwardFirstRowOffset(pass.context.shape));
}

ExpertRows RelayExecutorImpl::ExpertRowsOf(size_t v, absl::Span<const LayerId> dropped) const {
  ExpertRows rows(static_cast<size_t>(told_.size()));
  if (rows.empty()) return rows;
  const int64_t items = run_.batch.micro_batches;
  for (const LayerSpec& layer : model_.layers) {
    const bool runs = std::find(dropped.begin(), dropped.end(), layer.id) == dropped.end();
    if (layer.kind != LayerKind::kBlock || !runs) continue;
    const int64_t block = BlockOf(layer.id);
    for (int64_t item = 0; item < items; ++item) {
      const absl::Span<const int32_t> first = memory_.FirstRows(block, static_cast<int64_t>(v) * items + item);
      for (int64_t e = 0; e < told_.experts; ++e) {
        rows[static_cast<size_t>(block * told_.experts + e)] += static_cast<uint32_t>(first[e + 1] - first[e]);
      }
    }
  }
  return rows;
}

absl::Status FillRotaryTable(const ModelConfig& model, std::byte* to, Device& device) {
  const std::vector<float> table = RotaryTable(model.rotary, model.head_dim(), model.context);
  Stream& compute = device.stream(StreamId::kCompute);
  compute.CopyIn(to,
                 absl::MakeConstSpan(reinterpret_cast<const std::byte*>(table.data()), table.size() * sizeof(float)));
  return compute.Synchronize();
}

std::array<double, kNumWaitCauses> RelayExecutorImpl::TakeWaits() {
  std::array<StreamStats, kNumStreams> stats;
  for (const StreamId id : kStreams) stats[static_cast<size_t>(id)] = device_.stream(id).TakeStats();
  if (trace_.has_value()) {
    for (const StreamId id : kStreams) trace_->AddSpans(id, stats[static_cast<size_t>(id)].spans);
    trace_->AddWaits(StreamId::kIn, WaitCause::kVersion, pull_clock_.version_waits());
    trace_->AddWaits(StreamId::kOut, WaitCause::kRoom, room_waits_);
  }
  return ComputeWaits(stats[static_cast<size_t>(StreamId::kCompute)], pull_clock_, room_waits_,
                      {computed_at_, Clock::now()});
}

}  // namespace

absl::StatusOr<std::unique_ptr<RelayExecutor>> RelayExecutor::Create(Options options) {
  EPS_CHECK(options.model != nullptr && options.run != nullptr && options.device != nullptr &&
            options.transport != nullptr);
  EPS_ASSIGN_OR_RETURN(ArenaMap arena, MapArena(options.plan, *options.device));
  const RunConfig& run = *options.run;
  const LayerShape shape = MakeLayerShape(*options.model, run, options.device->properties().compute_dtype);
  if (arena.rotary_table != nullptr) {
    EPS_RETURN_IF_ERROR(FillRotaryTable(options.model->config, arena.rotary_table, *options.device));
  }
  EPS_ASSIGN_OR_RETURN(PassMemory memory,
                       PassMemory::New(*options.device, options.plan, shape, run.batch.micro_batches,
                                       ToldExpertsOf(options.model->config, run.batch.virtual_nodes)));
  HostMemory witnessed;
  if (options.witness != nullptr) {
    EPS_ASSIGN_OR_RETURN(witnessed, options.device->NewHostMemory(shape.boundary_bytes()));
  }
  return std::make_unique<RelayExecutorImpl>(std::move(options), std::move(arena), shape, std::move(memory),
                                             std::move(witnessed));
}

}  // namespace eps::worker
