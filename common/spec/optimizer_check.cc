#include "common/spec/optimizer_check.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/model/model_spec.h"
#include "common/spec/parameter_groups.h"

namespace eps {
namespace {

void CheckRule(const proto::Optimizer& optimizer, Checker& check, OptimizerConfig& out) {
  if (optimizer.has_sgd()) {
    const proto::Sgd& sgd = optimizer.sgd();
    out.rule = OptimizerRule::kSgd;
    out.momentum = check.BelowOne("optimizer.sgd.momentum", EPS_FIELD(sgd, momentum), 0);
    out.weight_decay = check.NotNegative("optimizer.sgd.weight_decay", EPS_FIELD(sgd, weight_decay), 0);
    return;
  }
  if (optimizer.has_lion()) {
    const proto::Lion& lion = optimizer.lion();
    out.rule = OptimizerRule::kLion;
    out.beta1 = check.BelowOne("optimizer.lion.beta1", EPS_FIELD(lion, beta1), 0.9);
    out.beta2 = check.BelowOne("optimizer.lion.beta2", EPS_FIELD(lion, beta2), 0.99);
    out.weight_decay = check.NotNegative("optimizer.lion.weight_decay", EPS_FIELD(lion, weight_decay), 0);
    return;
  }
  if (optimizer.has_lamb()) {
    const proto::Lamb& lamb = optimizer.lamb();
    out.rule = OptimizerRule::kLamb;
    out.beta1 = check.BelowOne("optimizer.lamb.beta1", EPS_FIELD(lamb, beta1), 0.9);
    out.beta2 = check.BelowOne("optimizer.lamb.beta2", EPS_FIELD(lamb, beta2), 0.999);
    out.eps = check.Positive("optimizer.lamb.eps", EPS_FIELD(lamb, eps), 1e-6);
    out.weight_decay = check.NotNegative("optimizer.lamb.weight_decay", EPS_FIELD(lamb, weight_decay), 0.01);
    const double most = out.max_trust_ratio;
    out.max_trust_ratio = check.Positive("optimizer.lamb.max_trust_ratio", EPS_FIELD(lamb, max_trust_ratio), most);
    if (out.max_trust_ratio > most) {
      check.Fail("optimizer.lamb.max_trust_ratio", absl::StrCat(out.max_trust_ratio, ", must be at most 2^64"));
    }
    return;
  }
  if (optimizer.has_adam()) {
    const proto::Adam& adam = optimizer.adam();
    out.rule = OptimizerRule::kAdam;
    out.beta1 = check.BelowOne("optimizer.adam.beta1", EPS_FIELD(adam, beta1), 0.9);
    out.beta2 = check.BelowOne("optimizer.adam.beta2", EPS_FIELD(adam, beta2), 0.999);
    out.eps = check.Positive("optimizer.adam.eps", EPS_FIELD(adam, eps), 1e-8);
    out.weight_decay = check.NotNegative("optimizer.adam.weight_decay", EPS_FIELD(adam, weight_decay), 0);
    return;
  }
  const proto::AdamW& adamw = optimizer.adamw();
  out.rule = OptimizerRule::kAdamW;
  out.beta1 = check.BelowOne("optimizer.adamw.beta1", EPS_FIELD(adamw, beta1), 0.9);
  out.beta2 = check.BelowOne("optimizer.adamw.beta2", EPS_FIELD(adamw, beta2), 0.999);
  out.eps = check.Positive("optimizer.adamw.eps", EPS_FIELD(adamw, eps), 1e-8);
  out.weight_decay = check.NotNegative("optimizer.adamw.weight_decay", EPS_FIELD(adamw, weight_decay), 0.01);
}

// The largest learning rate, and what decays by it, of tensors whose rate is `scale` times the schedule's.
void CheckRate(const std::string& field, double scale, double weight_decay, const OptimizerConfig& optimizer,
               Checker& check) {
  const double rate = scale * std::max(optimizer.peak_learning_rate, optimizer.final_learning_rate);
  if (!IsNormalFloat(scale * optimizer.peak_learning_rate) || !IsNormalFloat(rate)) {
    check.Fail(field,
               absl::StrCat(scale, ", times optimizer.schedule's peak or final must be a normal number in fp32"));
  }
  if (weight_decay > 0 && rate * weight_decay > std::numeric_limits<float>::max()) {
    check.Fail(field, absl::StrCat("a learning rate of ", rate, " times a weight decay of ", weight_decay,
                                   " must be finite in fp32"));
  }
}

void CheckGroups(const proto::Optimizer& optimizer, const ModelConfig& model, Checker& check, OptimizerConfig& out) {
  if (optimizer.groups_size() == 0) return;
  if (optimizer.groups_size() > kMaxParameterGroups) {
    check.Fail("optimizer.groups", absl::StrCat(optimizer.groups_size(), ", must be at most ", kMaxParameterGroups));
    return;
  }
  int patterns = 0;
  for (const proto::ParameterGroup& group : optimizer.groups()) {
    patterns += group.tensors_size();
    const std::string field = absl::StrCat("optimizer.groups[", out.groups.size(), "]");
    if (!group.has_learning_rate_scale() && !group.has_weight_decay()) {
      check.Fail(field, "changes nothing; give learning_rate_scale, weight_decay or both");
    }
    ParameterGroupConfig& added = out.groups.emplace_back();
    added.tensors.assign(group.tensors().begin(), group.tensors().end());
    added.learning_rate_scale =
        check.Positive(absl::StrCat(field, ".learning_rate_scale"), EPS_FIELD(group, learning_rate_scale), 1);
    if (group.has_weight_decay()) {
      added.weight_decay = check.NotNegative(absl::StrCat(field, ".weight_decay"), group.weight_decay(), 0);
    }
    CheckRate(absl::StrCat(field, ".learning_rate_scale"), added.learning_rate_scale,
              added.weight_decay.value_or(out.weight_decay), out, check);
  }
  if (patterns > kMaxParameterGroupPatterns) {
    check.Fail("optimizer.groups", absl::StrCat(patterns, " patterns, must be at most ", kMaxParameterGroupPatterns));
    return;
  }
  // The model itself was checked.
  const absl::StatusOr<ModelSpec> built = BuildModel(model);
  check.Take(built.ok() ? AssignParameterGroups(*built, out.groups).status() : built.status());
}

ScheduleDecay ToScheduleDecay(proto::Schedule::Decay decay) {
  switch (decay) {
    case proto::Schedule::LINEAR:
      return ScheduleDecay::kLinear;
    case proto::Schedule::COSINE:
      return ScheduleDecay::kCosine;
    case proto::Schedule::ONE_MINUS_SQRT:
      return ScheduleDecay::kOneMinusSqrt;
    case proto::Schedule::INVERSE_SQRT:
      return ScheduleDecay::kInverseSqrt;
    default:
      return ScheduleDecay::kConstant;
  }
}

void CheckSchedule(const proto::Schedule& schedule, Checker& check, OptimizerConfig& out) {
  out.peak_learning_rate = check.Positive("optimizer.schedule.peak", EPS_FIELD(schedule, peak), 0);
  out.final_learning_rate = check.NotNegative("optimizer.schedule.final", EPS_FIELD(schedule, final), 0);
  out.warmup_steps =
      check.Integer<int64_t>("optimizer.schedule.warmup_steps", EPS_FIELD(schedule, warmup_steps), 0, 0, kMaxSteps);
  if (schedule.has_final() && !schedule.has_decay()) {
    check.Fail("optimizer.schedule.final",
               "given without optimizer.schedule.decay; add decay: LINEAR, COSINE or ONE_MINUS_SQRT");
  }
  out.decay = ToScheduleDecay(schedule.decay());
  if (out.decay == ScheduleDecay::kInverseSqrt && out.warmup_steps == 0) {
    check.Fail("optimizer.schedule.warmup_steps", "0, must be at least 1 with INVERSE_SQRT, which falls from there on");
  }
  if (!schedule.has_decay_steps()) return;
  if (out.decay == ScheduleDecay::kInverseSqrt || out.decay == ScheduleDecay::kConstant) {
    check.Fail("optimizer.schedule.decay_steps",
               "given without a decay that has an end: LINEAR, COSINE or ONE_MINUS_SQRT");
  }
  out.decay_steps =
      check.Integer<int64_t>("optimizer.schedule.decay_steps", EPS_FIELD(schedule, decay_steps), 1, 1, kMaxSteps);
}

void CheckClip(const proto::Clip& clip, Checker& check, OptimizerConfig& out) {
  if (!clip.has_mode()) check.Fail("optimizer.clip.mode", "missing, must be EXACT, PER_BLOB or LAGGED");
  switch (clip.mode()) {
    case proto::Clip::EXACT:
      out.clip = ClipMode::kExact;
      break;
    case proto::Clip::PER_BLOB:
      out.clip = ClipMode::kPerBlob;
      break;
    case proto::Clip::LAGGED:
      out.clip = ClipMode::kLagged;
      break;
    default:
      out.clip = ClipMode::kNone;
      out.clip_norm = check.NotNegative("optimizer.clip.norm", EPS_FIELD(clip, norm), 0);
      return;
  }
  out.clip_norm = check.Positive("optimizer.clip.norm", EPS_FIELD(clip, norm), 0);
}

proto::Schedule::Decay ToProto(ScheduleDecay decay) {
  switch (decay) {
    case ScheduleDecay::kConstant:
      return proto::Schedule::CONSTANT;
    case ScheduleDecay::kLinear:
      return proto::Schedule::LINEAR;
    case ScheduleDecay::kCosine:
      return proto::Schedule::COSINE;
    case ScheduleDecay::kOneMinusSqrt:
      return proto::Schedule::ONE_MINUS_SQRT;
    case ScheduleDecay::kInverseSqrt:
      return proto::Schedule::INVERSE_SQRT;
  }
  return proto::Schedule::CONSTANT;
}

proto::Clip::Mode ToProto(ClipMode mode) {
  switch (mode) {
    case ClipMode::kNone:
      return proto::Clip::NONE;
    case ClipMode::kExact:
      return proto::Clip::EXACT;
    case ClipMode::kPerBlob:
      return proto::Clip::PER_BLOB;
    case ClipMode::kLagged:
      return proto::Clip::LAGGED;
  }
  return proto::Clip::NONE;
}

}  // namespace

void CheckOptimizer(const proto::Optimizer& optimizer, const ModelConfig& model, Checker& check, OptimizerConfig& out) {
  CheckRule(optimizer, check, out);
  CheckSchedule(optimizer.schedule(), check, out);
  CheckRate("optimizer.schedule.peak", 1, out.weight_decay, out, check);
  CheckGroups(optimizer, model, check, out);
  if (optimizer.has_clip()) CheckClip(optimizer.clip(), check, out);
}

void WriteOptimizer(const OptimizerConfig& optimizer, proto::Optimizer& out) {
  switch (optimizer.rule) {
    case OptimizerRule::kAdamW: {
      proto::AdamW& adamw = *out.mutable_adamw();
      adamw.set_beta1(optimizer.beta1);
      adamw.set_beta2(optimizer.beta2);
      adamw.set_eps(optimizer.eps);
      adamw.set_weight_decay(optimizer.weight_decay);
      break;
    }
    case OptimizerRule::kAdam: {
      proto::Adam& adam = *out.mutable_adam();
      adam.set_beta1(optimizer.beta1);
      adam.set_beta2(optimizer.beta2);
      adam.set_eps(optimizer.eps);
      adam.set_weight_decay(optimizer.weight_decay);
      break;
    }
    case OptimizerRule::kSgd:
      out.mutable_sgd()->set_momentum(optimizer.momentum);
      out.mutable_sgd()->set_weight_decay(optimizer.weight_decay);
      break;
    case OptimizerRule::kLion: {
      proto::Lion& lion = *out.mutable_lion();
      lion.set_beta1(optimizer.beta1);
      lion.set_beta2(optimizer.beta2);
      lion.set_weight_decay(optimizer.weight_decay);
      break;
    }
    case OptimizerRule::kLamb: {
      proto::Lamb& lamb = *out.mutable_lamb();
      lamb.set_beta1(optimizer.beta1);
      lamb.set_beta2(optimizer.beta2);
      lamb.set_eps(optimizer.eps);
      lamb.set_weight_decay(optimizer.weight_decay);
      lamb.set_max_trust_ratio(optimizer.max_trust_ratio);
      break;
    }
  }
  for (const ParameterGroupConfig& group : optimizer.groups) {
    proto::ParameterGroup& added = *out.add_groups();
    added.mutable_tensors()->Assign(group.tensors.begin(), group.tensors.end());
    added.set_learning_rate_scale(group.learning_rate_scale);
    if (group.weight_decay.has_value()) added.set_weight_decay(*group.weight_decay);
  }
  proto::Schedule& schedule = *out.mutable_schedule();
  schedule.set_peak(optimizer.peak_learning_rate);
  schedule.set_warmup_steps(optimizer.warmup_steps);
  schedule.set_decay(ToProto(optimizer.decay));
  schedule.set_final(optimizer.final_learning_rate);
  if (optimizer.decay_steps > 0) schedule.set_decay_steps(optimizer.decay_steps);
  out.mutable_clip()->set_mode(ToProto(optimizer.clip));
  out.mutable_clip()->set_norm(optimizer.clip_norm);
}

}  // namespace eps
