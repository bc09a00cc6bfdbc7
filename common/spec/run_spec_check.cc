#include "common/spec/run_spec_check.h"

#include <cstdint>
#include <limits>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/numeric/quantized.h"
#include "common/schedule/group_limits.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/checker.h"
#include "common/spec/data_check.h"
#include "common/spec/model_check.h"
#include "common/spec/optimizer_check.h"
#include "common/tensor/dtype.h"

namespace eps {
namespace {

constexpr int64_t kMaxTokensPerStep = int64_t{1} << 40;
constexpr int64_t kMaxCheckpointBufferBytes = int64_t{1} << 50;
constexpr int64_t kMaxOffloadMemoryBytes = int64_t{1} << 50;
constexpr int kMaxDepthFirstBlocks = 65'536;
constexpr int64_t kMaxFeedForwardTile = int64_t{1} << 24;
constexpr int64_t kFeedForwardTileUnit = 64;  // so that rows of any width, and their statistics, begin aligned

// ---- Batch

void CheckBatch(const proto::Batch& batch, const ModelConfig& model, Checker& check, BatchConfig& out) {
  out.virtual_nodes = check.Integer("batch.virtual_nodes", EPS_FIELD(batch, virtual_nodes), 1, 1, 65536);
  out.micro_batches = check.Integer("batch.micro_batches", EPS_FIELD(batch, micro_batches), 1, 1, 1 << 20);
  out.micro_batch = check.Integer("batch.micro_batch", EPS_FIELD(batch, micro_batch), 1, 1, 65536);
  constexpr char kTile[] = "batch.feed_forward_tile";
  out.feed_forward_tile = check.Integer<int64_t>(kTile, EPS_FIELD(batch, feed_forward_tile), 0, 0, kMaxFeedForwardTile);
  if (out.feed_forward_tile % kFeedForwardTileUnit != 0) {
    check.Fail(kTile, absl::StrCat(out.feed_forward_tile, ", must be a multiple of ", kFeedForwardTileUnit));
  }
  if (out.feed_forward_tile > 0 && model.experts.are_on()) {
    check.Fail(kTile, "not with model.experts, whose rows are routed together; leave it out");
  }
}

// Keeps tokens of a step and places of samples far from overflow: 2^16 * 2^20 * 2^16 sequences
// alone do not overflow.
absl::Status CheckProducts(const RunConfig& config) {
  const int64_t sequences = config.batch.sequences_per_step();
  if (sequences > kMaxTokensPerStep / config.model.context) {
    return absl::InvalidArgumentError(absl::StrCat("batch: ", sequences, " sequences of ", config.model.context,
                                                   " tokens per step, must be at most ", kMaxTokensPerStep, " tokens"));
  }
  if (config.steps > (std::numeric_limits<int64_t>::max() / 4) / sequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps: ", config.steps, " of ", sequences, " sequences each, must be fewer than 2^61 sequences"));
  }
  return absl::OkStatus();
}

// ---- Precision, relay, transport, checkpoint

void CheckLossScale(const proto::LossScale& scale, Checker& check, LossScaleRule& out) {
  out.first = check.Positive("precision.loss_scale.initial", EPS_FIELD(scale, initial), out.first);
  if (!IsLossScale(out.first)) {
    check.Fail("precision.loss_scale.initial", absl::StrCat(out.first, ", must be ", kLossScaleRange));
  }
  out.growth_interval = check.Integer<int64_t>("precision.loss_scale.growth_interval",
                                               EPS_FIELD(scale, growth_interval), out.growth_interval, 0, kMaxSteps);
}

MomentFormat ToMomentFormat(proto::Moments::Format format) {
  return format == proto::Moments::FP8    ? MomentFormat::kFp8
         : format == proto::Moments::BF16 ? MomentFormat::kBf16
                                          : MomentFormat::kFp32;
}

void CheckPrecision(const proto::Precision& precision, Checker& check, PrecisionConfig& out) {
  const auto dtype = [](std::optional<proto::Precision::Format> given) {
    const proto::Precision::Format format = given.value_or(proto::Precision::BF16);
    return format == proto::Precision::FP32   ? Dtype::kF32
           : format == proto::Precision::BF16 ? Dtype::kBf16
                                              : Dtype::kF16;
  };
  out.wire = dtype(EPS_FIELD(precision, wire));
  out.gradients = dtype(EPS_FIELD(precision, gradients));
  out.algorithms = precision.algorithms() == proto::Precision::FASTEST ? ChoiceRule::kFastest : ChoiceRule::kFirst;
  out.moments = ToMomentFormat(precision.moments());
  out.tf32 = precision.tf32();
  out.plain_attention = precision.plain_attention();
  out.wire_versions = check.Integer("precision.wire_versions", EPS_FIELD(precision, wire_versions), 2, 1, 2);
  if (out.tf32 && out.wire != Dtype::kF32) {
    check.Fail("precision.tf32", "is of products of FP32 operands; give precision.wire: FP32, or leave it out");
  }
  if (out.wire == Dtype::kF16 || out.gradients == Dtype::kF16) {
    CheckLossScale(precision.loss_scale(), check, out.loss_scale.emplace());
  } else if (precision.has_loss_scale()) {
    check.Fail("precision.loss_scale", "has a meaning only where precision.wire or precision.gradients is FP16");
  }
}

void CheckRelay(const proto::Relay& relay, Checker& check, RelayConfig& out) {
  out.inner = relay.inner() == proto::Relay::Inner::KEEP        ? InnerPolicy::kKeep
              : relay.inner() == proto::Relay::Inner::SWAP      ? InnerPolicy::kSwap
              : relay.inner() == proto::Relay::Inner::RECOMPUTE ? InnerPolicy::kRecompute
                                                                : InnerPolicy::kAuto;
  out.boundaries = relay.boundaries() == proto::Relay::Boundary::HOST     ? BoundaryPolicy::kHost
                   : relay.boundaries() == proto::Relay::Boundary::DEVICE ? BoundaryPolicy::kDevice
                                                                          : BoundaryPolicy::kAuto;
  out.resident = relay.resident();
  if (relay.has_weight_slots()) {
    out.weight_slots = check.Integer("relay.weight_slots", EPS_FIELD(relay, weight_slots), 2, 1, 64);
  }
  out.group_members = check.Integer("relay.group_members", EPS_FIELD(relay, group_members), 1, 1, kMaxGroupMembers);
  out.graphs = relay.graphs() == proto::Relay::Graphs::ALWAYS  ? GraphUse::kAlways
               : relay.graphs() == proto::Relay::Graphs::NEVER ? GraphUse::kNever
                                                               : GraphUse::kAuto;
  out.vnode_shares =
      relay.vnode_shares() == proto::Relay::VnodeShares::EVEN ? VnodeShares::kEven : VnodeShares::kBySpeed;
  out.device_models =
      relay.device_models() == proto::Relay::DeviceModels::ONE ? DeviceModelRule::kOne : DeviceModelRule::kAny;
  if (!relay.has_depth_first_blocks()) return;
  out.depth_first_blocks =
      check.Integer("relay.depth_first_blocks", EPS_FIELD(relay, depth_first_blocks), 0, 0, kMaxDepthFirstBlocks);
  if (*out.depth_first_blocks > 0 && out.group_members > 1) {
    check.Fail("relay.depth_first_blocks",
               "members of a group exchange gradients layer by layer; leave it out, or relay.group_members");
  }
}

TransportChoice ToTransport(proto::Transport::Choice choice) {
  return choice == proto::Transport::GRPC            ? TransportChoice::kGrpc
         : choice == proto::Transport::SHARED_MEMORY ? TransportChoice::kSharedMemory
                                                     : TransportChoice::kAuto;
}

void CheckCheckpoint(const proto::Checkpoint& checkpoint, Checker& check, CheckpointConfig& out) {
  out.every_steps =
      check.Integer<int64_t>("checkpoint.every_steps", EPS_FIELD(checkpoint, every_steps), 0, 0, kMaxSteps);
  out.keep = check.Integer("checkpoint.keep", EPS_FIELD(checkpoint, keep), 2, 1, 1'000'000);
  out.buffer_bytes = check.Integer<int64_t>("checkpoint.buffer_bytes", EPS_FIELD(checkpoint, buffer_bytes), 0, 0,
                                            kMaxCheckpointBufferBytes);
  out.last = EPS_FIELD(checkpoint, last).value_or(true);
  out.keep_every_steps =
      check.Integer<int64_t>("checkpoint.keep_every_steps", EPS_FIELD(checkpoint, keep_every_steps), 0, 0, kMaxSteps);
  if (out.keep_every_steps > 0 && (out.every_steps <= 0 || out.keep_every_steps % out.every_steps != 0)) {
    check.Fail("checkpoint.keep_every_steps",
               absl::StrCat(out.keep_every_steps, ", must be a multiple of checkpoint.every_steps, ", out.every_steps,
                            ", so that there is a checkpoint to keep"));
  }
}

void CheckOptimizerOffload(const proto::OptimizerOffload& offload, const CheckContext& context, Checker& check,
                           OptimizerOffloadConfig& out) {
  if (offload.path().empty()) {
    check.Fail("optimizer_offload.path", "missing; a folder on a fast disk, or leave optimizer_offload out");
    return;
  }
  out.path = context.absolute_path(offload.path());
  out.memory_bytes = check.Integer<int64_t>("optimizer_offload.memory_bytes", EPS_FIELD(offload, memory_bytes), 0, 0,
                                            kMaxOffloadMemoryBytes);
}

void CheckLayerDrop(const proto::LayerDrop& drop, const ModelConfig& model, Checker& check, LayerDropConfig& out) {
  out.share = check.BelowOne("depth.drop.share", EPS_FIELD(drop, share), 0);
  out.rule = drop.rule() == proto::LayerDrop::LINEAR ? DropRule::kLinear : DropRule::kUniform;
  if (!out.is_on()) {
    out = {};
  } else if (model.family == ModelFamily::kBert) {
    check.Fail("depth.drop.share",
               "a BERT's block begins with the norm that ends the one before, which would be dropped with it; "
               "leave depth.drop out");
  }
}

PreferenceRule FromProto(proto::Preferences::Loss loss) {
  switch (loss) {
    case proto::Preferences::SIMPO:
      return PreferenceRule::kSimPo;
    case proto::Preferences::ORPO:
      return PreferenceRule::kOrpo;
    default:
      return PreferenceRule::kDpo;
  }
}

void CheckPreferences(const proto::Preferences& preferences, const ModelConfig& model, Checker& check,
                      PreferenceConfig& out) {
  if (model.family == ModelFamily::kBert) {
    check.Fail("preferences", "given, but a BERT answers nothing; of family GPT2 and LLAMA alone");
    return;
  }
  out.rule = FromProto(preferences.loss());
  const bool is_dpo = out.rule == PreferenceRule::kDpo, is_simpo = out.rule == PreferenceRule::kSimPo;
  out.beta = check.Positive("preferences.beta", EPS_FIELD(preferences, beta), is_simpo ? 2 : 0.1);
  out.margin = check.NotNegative("preferences.margin", EPS_FIELD(preferences, margin), 0);
  out.label_smoothing = EPS_FIELD(preferences, label_smoothing).value_or(0);
  if (!(out.label_smoothing >= 0 && out.label_smoothing < 0.5)) {  // not for NaN
    check.Fail("preferences.label_smoothing",
               absl::StrCat(out.label_smoothing, ", must be at least 0 and less than 0.5"));
  }
  if (!is_dpo && out.label_smoothing != 0) {
    check.Fail("preferences.label_smoothing", "given, but it is of loss: DPO");
  }
  if (!is_simpo && out.margin != 0) check.Fail("preferences.margin", "given, but it is of loss: SIMPO");
  if (is_dpo && !model.lora.is_on()) {
    check.Fail("preferences.loss",
               "DPO compares with the model without its adapters, and there is no model.lora; add it, or take SIMPO or "
               "ORPO");
  }
}

// ---- Back to a RunSpec

proto::Preferences::Loss ToProto(PreferenceRule rule) {
  switch (rule) {
    case PreferenceRule::kSimPo:
      return proto::Preferences::SIMPO;
    case PreferenceRule::kOrpo:
      return proto::Preferences::ORPO;
    default:
      return proto::Preferences::DPO;
  }
}

void WriteRelay(const RelayConfig& relay, proto::Relay& out) {
  out.set_inner(relay.inner == InnerPolicy::kKeep        ? proto::Relay::Inner::KEEP
                : relay.inner == InnerPolicy::kSwap      ? proto::Relay::Inner::SWAP
                : relay.inner == InnerPolicy::kRecompute ? proto::Relay::Inner::RECOMPUTE
                                                         : proto::Relay::Inner::AUTO);
  out.set_boundaries(relay.boundaries == BoundaryPolicy::kHost     ? proto::Relay::Boundary::HOST
                     : relay.boundaries == BoundaryPolicy::kDevice ? proto::Relay::Boundary::DEVICE
                                                                   : proto::Relay::Boundary::AUTO);
  out.set_resident(relay.resident);
  if (relay.weight_slots > 0) out.set_weight_slots(relay.weight_slots);
  out.set_group_members(relay.group_members);
  out.set_graphs(relay.graphs == GraphUse::kAlways  ? proto::Relay::Graphs::ALWAYS
                 : relay.graphs == GraphUse::kNever ? proto::Relay::Graphs::NEVER
                                                    : proto::Relay::Graphs::AUTO);
  out.set_vnode_shares(relay.vnode_shares == VnodeShares::kEven ? proto::Relay::VnodeShares::EVEN
                                                                : proto::Relay::VnodeShares::BY_SPEED);
  out.set_device_models(relay.device_models == DeviceModelRule::kOne ? proto::Relay::DeviceModels::ONE
                                                                     : proto::Relay::DeviceModels::ANY);
  if (relay.depth_first_blocks.has_value()) out.set_depth_first_blocks(*relay.depth_first_blocks);
}

proto::Precision::Format ToProto(Dtype dtype) {
  return dtype == Dtype::kF32    ? proto::Precision::FP32
         : dtype == Dtype::kBf16 ? proto::Precision::BF16
                                 : proto::Precision::FP16;
}
proto::Frozen::Format ToProto(QuantizedFormat format) {
  switch (format) {
    case QuantizedFormat::kMxInt8:
      return proto::Frozen::MXINT8;
    case QuantizedFormat::kNf4:
      return proto::Frozen::NF4;
  }
  return proto::Frozen::WIRE;
}
proto::Moments::Format ToProto(MomentFormat format) {
  return format == MomentFormat::kFp32   ? proto::Moments::FP32
         : format == MomentFormat::kBf16 ? proto::Moments::BF16
                                         : proto::Moments::FP8;
}

}  // namespace

absl::StatusOr<RunConfig> CheckRunSpec(const proto::RunSpec& spec, const CheckContext& context) {
  RunConfig config;
  EPS_RETURN_IF_ERROR(CheckModel(spec, context, config));
  Checker check;
  if (spec.has_preferences()) CheckPreferences(spec.preferences(), config.model, check, config.preferences);
  if (spec.data().sources_size() > 0) {
    CheckSources(spec.data(), context, check, config);
  } else {
    CheckData(spec.data(), config, context, check, config.data);
  }
  CheckBatch(spec.batch(), config.model, check, config.batch);
  if (config.batch.micro_batch % config.sequences_per_sample() != 0) {
    check.Fail("batch.micro_batch",
               absl::StrCat(config.batch.micro_batch, ", must be even: with `preferences` a pair is two sequences"));
  }
  CheckOptimizer(spec.optimizer(), config.model, check, config.optimizer);
  CheckPrecision(spec.precision(), check, config.precision);
  if (config.precision.loss_scale.has_value() &&
      (config.optimizer.clip == ClipMode::kPerBlob || config.optimizer.clip == ClipMode::kLagged)) {
    check.Fail("optimizer.clip.mode",
               "updates before the whole gradient is in, which FP16 rules out; use EXACT or NONE");
  }
  CheckRelay(spec.relay(), check, config.relay);
  config.transport = ToTransport(spec.transport());
  CheckCheckpoint(spec.checkpoint(), check, config.checkpoint);
  config.steps = check.Integer<int64_t>("steps", EPS_FIELD(spec, steps), 0, 1, kMaxSteps);
  if (spec.has_evaluation()) {
    CheckEvaluation(spec.evaluation(), spec.data(), config, context, check, config.evaluation);
  }
  CheckLayerDrop(spec.depth().drop(), config.model, check, config.layer_drop);
  if (config.layer_drop.is_on() && config.preferences.has_reference()) {
    check.Fail("depth.drop.share",
               "DPO compares with the whole model: what blocks that are left out change would count as learnt; leave "
               "depth.drop out, or take preferences.loss: SIMPO or ORPO");
  }
  if (spec.has_optimizer_offload()) {
    CheckOptimizerOffload(spec.optimizer_offload(), context, check, config.optimizer_offload);
  }
  EPS_RETURN_IF_ERROR(check.status());
  EPS_RETURN_IF_ERROR(CheckProducts(config));
  return config;
}

proto::RunSpec ToRunSpec(const RunConfig& config) {
  proto::RunSpec spec;
  WriteModel(config, *spec.mutable_model());
  WriteData(config, config.data, *spec.mutable_data());
  if (!config.sources.empty()) WriteSources(config, *spec.mutable_data());
  spec.mutable_batch()->set_virtual_nodes(config.batch.virtual_nodes);
  spec.mutable_batch()->set_micro_batches(config.batch.micro_batches);
  spec.mutable_batch()->set_micro_batch(config.batch.micro_batch);
  spec.mutable_batch()->set_feed_forward_tile(config.batch.feed_forward_tile);
  WriteOptimizer(config.optimizer, *spec.mutable_optimizer());
  spec.mutable_precision()->set_wire(ToProto(config.precision.wire));
  spec.mutable_precision()->set_gradients(ToProto(config.precision.gradients));
  spec.mutable_precision()->set_moments(ToProto(config.precision.moments));
  spec.mutable_precision()->set_algorithms(
      config.precision.algorithms == ChoiceRule::kFastest ? proto::Precision::FASTEST : proto::Precision::FIRST);
  spec.mutable_precision()->set_tf32(config.precision.tf32);
  spec.mutable_precision()->set_plain_attention(config.precision.plain_attention);
  spec.mutable_precision()->set_wire_versions(config.precision.wire_versions);
  if (const std::optional<QuantizedFormat> format = config.model.frozen_format; format.has_value()) {
    spec.mutable_precision()->set_frozen(ToProto(*format));
  }
  if (const std::optional<LossScaleRule>& rule = config.precision.loss_scale; rule.has_value()) {
    spec.mutable_precision()->mutable_loss_scale()->set_initial(rule->first);
    spec.mutable_precision()->mutable_loss_scale()->set_growth_interval(rule->growth_interval);
  }
  WriteRelay(config.relay, *spec.mutable_relay());
  spec.set_transport(config.transport == TransportChoice::kGrpc           ? proto::Transport::GRPC
                     : config.transport == TransportChoice::kSharedMemory ? proto::Transport::SHARED_MEMORY
                                                                          : proto::Transport::AUTO);
  spec.mutable_checkpoint()->set_every_steps(config.checkpoint.every_steps);
  spec.mutable_checkpoint()->set_keep(config.checkpoint.keep);
  spec.mutable_checkpoint()->set_buffer_bytes(config.checkpoint.buffer_bytes);
  spec.mutable_checkpoint()->set_last(config.checkpoint.last);
  if (config.checkpoint.keep_every_steps > 0) {
    spec.mutable_checkpoint()->set_keep_every_steps(config.checkpoint.keep_every_steps);
  }
  spec.set_steps(config.steps);
  if (config.evaluation.is_on()) WriteEvaluation(config.evaluation, *spec.mutable_evaluation());
  if (config.layer_drop.is_on()) {
    proto::LayerDrop& drop = *spec.mutable_depth()->mutable_drop();
    drop.set_share(config.layer_drop.share);
    drop.set_rule(config.layer_drop.rule == DropRule::kLinear ? proto::LayerDrop::LINEAR : proto::LayerDrop::UNIFORM);
  }
  if (config.optimizer_offload.is_on()) {
    spec.mutable_optimizer_offload()->set_path(config.optimizer_offload.path);
    spec.mutable_optimizer_offload()->set_memory_bytes(config.optimizer_offload.memory_bytes);
  }
  if (config.preferences.is_on()) {
    const PreferenceRule rule = config.preferences.rule;
    proto::Preferences& preferences = *spec.mutable_preferences();
    preferences.set_loss(ToProto(rule));
    preferences.set_beta(config.preferences.beta);
    if (rule == PreferenceRule::kSimPo) preferences.set_margin(config.preferences.margin);
    if (rule == PreferenceRule::kDpo) preferences.set_label_smoothing(config.preferences.label_smoothing);
  }
  return spec;
}

}  // namespace eps
