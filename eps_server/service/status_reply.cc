#include "eps_server/service/status_reply.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/grpc/proto_text.h"

namespace eps::server {
namespace {

std::string ToString(absl::string_view text) { return std::string(text.data(), text.size()); }

void FillWorker(const WorkerStatus& status, proto::WorkerStatus& worker) {
  worker.set_worker_id(status.id.value());
  worker.set_device_name(status.info.device_name);
  worker.set_process_id(status.info.process_id);
  worker.set_state(ToString(WorkerStateName(status.state)));
  for (const int vnode : status.vnodes) worker.add_vnodes(vnode);
  worker.set_device_cap_bytes(status.info.device_cap_bytes);
  worker.set_device_arena_bytes(status.memory.device_arena_bytes);
  worker.set_transport(status.memory.transport);
  worker.set_host_name(status.info.host_name);
  worker.set_metrics_address(status.info.metrics_address);
  worker.set_device_peak_bytes(status.last_pass.device_peak_bytes);
  worker.set_device_outside_bytes(status.memory.device_outside_bytes);
  worker.set_pass_seconds(status.last_pass.seconds);
  worker.set_silent_seconds(absl::ToDoubleSeconds(status.silent_for));
  worker.set_group_members(status.group_members);
  worker.set_group_founder(status.group_founder.value());
  worker.set_device_model(status.info.device_model);
  for (const auto& [cause, seconds] : status.last_pass.wait_seconds) {
    (*worker.mutable_wait_seconds())[cause] = seconds;
  }
}

void FillPairs(double accuracy, const PairRewards& rewards, proto::PairsStatus& pairs) {
  pairs.set_accuracy(accuracy);
  pairs.set_chosen_reward(rewards.chosen);
  pairs.set_rejected_reward(rewards.rejected);
}

// A byte of proto::ExpertLoad's map.
char MapByte(float load) {
  if (std::isnan(load)) return '\xff';
  const double in_32nds = std::round(32 * static_cast<double>(load));
  return static_cast<char>(static_cast<unsigned char>(std::clamp(in_32nds, load > 0 ? 1.0 : 0.0, 254.0)));
}

void FillExpertLoad(const ExpertLoad& load, proto::ExpertLoad& out) {
  out.set_blocks(static_cast<int64_t>(load.load.size()) / load.experts);
  out.set_experts(load.experts);
  out.set_busiest(load.busiest);
  out.set_busiest_block(load.busiest_block);
  out.set_busiest_expert(load.busiest_expert);
  out.set_mean_busiest(load.mean_busiest);
  out.set_idle(load.idle);
  out.set_running(load.running);
  for (const float each : load.load) out.mutable_map()->push_back(MapByte(each));
}

}  // namespace

void FillStatus(const RunStatus& status, proto::StatusReply& reply) {
  reply.set_state(ToString(RunPhaseName(status.phase)));
  reply.set_failure(ProtoText(status.failure));
  reply.set_step(status.step);
  reply.set_steps(status.steps);
  reply.set_loss(status.loss);
  reply.set_learning_rate(status.learning_rate);
  reply.set_gradient_norm(status.gradient_norm);
  reply.set_tokens_per_second(status.tokens_per_second);
  reply.set_model_flops_per_second(status.model_flops_per_second);
  reply.set_eta_seconds(status.eta_seconds);
  reply.set_seconds(status.seconds);
  reply.set_tokens(status.tokens);
  reply.set_counted(status.counted);
  reply.set_model_state_bytes(status.model_state_bytes);
  reply.set_contribution_window_bytes(status.window_bytes);
  reply.set_contribution_window_used_bytes(status.window_used_bytes);
  reply.set_resident_bytes(status.resident_bytes);
  reply.set_newest_checkpoint(ProtoText(status.newest_checkpoint));
  reply.set_checkpoints_written(status.checkpoints_written);
  reply.set_checkpoint_failures(status.checkpoint_failures);
  reply.set_checkpoint_error(ProtoText(status.checkpoint_error));
  reply.set_skipped_steps(status.skipped_steps);
  reply.set_loss_scale(status.loss_scale);
  reply.set_last_step_seconds(status.last_step_seconds);
  reply.set_step_age_seconds(status.step_age_seconds);
  reply.set_checkpoint_step(status.checkpoint_step);
  reply.set_checkpoint_age_seconds(status.checkpoint_age_seconds);
  reply.set_checkpoint_write_seconds(status.checkpoint_write_seconds);
  reply.set_checkpoint_bytes(status.checkpoint_bytes);
  reply.set_checkpoint_writing_seconds(status.checkpoint_writing_seconds);
  reply.set_checkpoint_writing_step(status.checkpoint_writing_step);
  reply.set_workers_attached(status.counts.workers_attached);
  reply.set_workers_lost(status.counts.workers_lost);
  reply.set_vnodes_redone(status.counts.vnodes_redone);
  reply.set_step_waits(status.counts.step_waits);
  reply.set_step_seconds(status.step_seconds);
  reply.set_blobs(static_cast<int64_t>(status.blobs_updated.size()));
  reply.set_blobs_pending(status.num_blobs_pending());
  reply.set_blobs_summed(status.blobs_summed);
  reply.set_updates_wait_for_norm(status.updates_wait_for_norm);
  reply.set_workers_expected(status.workers_expected);
  reply.set_start_in_seconds(status.start_in_seconds);
  for (const bool updated : status.blobs_updated) reply.add_blobs_updated(updated);
  reply.set_hold_bytes(status.hold_bytes);
  reply.set_lease_seconds(status.lease_seconds);
  for (const double loss : status.loss_curve) reply.add_loss_curve(loss);
  reply.set_loss_curve_steps(status.loss_curve_steps);
  for (const WorkerStatus& worker : status.workers) FillWorker(worker, *reply.add_workers());
  if (status.step_wait.has_value()) {
    proto::StepWait& wait = *reply.mutable_step_wait();
    wait.set_cause(ToString(status.step_wait->cause));
    wait.set_seconds(status.step_wait->seconds);
    for (const auto& [worker, vnodes] : status.step_wait->vnodes) {
      if (worker != WorkerId()) wait.add_worker_id(worker.value());
    }
  }
  if (status.pairs.has_value()) FillPairs(status.pairs->accuracy, status.pairs->rewards, *reply.mutable_pairs());
  if (status.expert_load.has_value()) FillExpertLoad(*status.expert_load, *reply.mutable_expert_load());
  if (status.evaluation.has_value()) {
    proto::EvaluationStatus& evaluation = *reply.mutable_evaluation();
    evaluation.set_step(status.evaluation->version.value());
    evaluation.set_loss(status.evaluation->loss);
    evaluation.set_accuracy(status.evaluation->accuracy);
    evaluation.set_tokens(status.evaluation->tokens);
    evaluation.set_seconds(status.evaluation->seconds);
    if (status.evaluation->rewards.has_value()) {
      FillPairs(status.evaluation->accuracy, *status.evaluation->rewards, *evaluation.mutable_pairs());
    }
  }
  if (status.evaluating.has_value()) {
    proto::EvaluationProgress& evaluating = *reply.mutable_evaluating();
    evaluating.set_step(status.evaluating->version.value());
    evaluating.set_share(status.evaluating->share);
    evaluating.set_seconds(status.evaluating->seconds);
  }
  reply.set_parameters(status.parameters);
  reply.set_trainable_parameters(status.trainable_parameters);
  for (const auto& [cause, share] : status.wait_fraction) (*reply.mutable_wait_fraction())[cause] = share;
}

void FillStart(const LongWork::View& work, proto::StatusReply& reply) {
  reply.set_state(ToString(RunPhaseName(RunPhase::kStarting)));
  reply.set_learning_rate(-1);
  reply.set_gradient_norm(-1);
  reply.set_eta_seconds(-1);
  reply.set_checkpoint_step(-1);
  reply.set_checkpoint_writing_step(-1);
  reply.set_start_in_seconds(-1);
  reply.set_loss_scale(1);
  proto::StartWork& said = *reply.mutable_start_work();
  said.set_what(ProtoText(work.what));
  said.set_done_bytes(work.done_bytes);
  said.set_total_bytes(work.total_bytes);
  said.set_seconds(work.seconds);
}

void FillKeys(const KeysState& keys, absl::Time now, proto::StatusReply& reply) {
  const bool have_end = keys.expires != absl::InfiniteFuture();
  if (!have_end && keys.not_reloaded.empty()) return;
  if (have_end) reply.mutable_keys()->set_expires_in_seconds(absl::ToDoubleSeconds(keys.expires - now));
  reply.mutable_keys()->set_not_reloaded(ProtoText(keys.not_reloaded));
}

int64_t CheckpointStep(const std::string& path) {
  const size_t at = path.rfind('-');
  return at == std::string::npos ? 0 : std::strtoll(path.c_str() + at + 1, nullptr, 10);
}

}  // namespace eps::server
