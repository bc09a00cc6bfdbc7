#include "eps_server/telemetry/daemon_metrics.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/state_names.h"
#include "common/base/wait_cause.h"
#include "common/telemetry/metric_page.h"
#include "eps_server/membership/membership.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr MetricType kCounter = MetricType::kCounter;

// By its length: string_view's own constructor asks whether an array's address is null, which under
// UndefinedBehaviorSanitizer is no constant for g++.
template <size_t size>
constexpr absl::string_view Name(const char (&text)[size]) {
  return {text, size - 1};
}

constexpr absl::string_view kPhases[] = {Name(run_state::kStarting), Name(run_state::kWaitingForWorkers),
                                         Name(run_state::kTraining), Name(run_state::kFinishing),
                                         Name(run_state::kFinished), Name(run_state::kFailed),
                                         Name(run_state::kServing)};
constexpr absl::string_view kStepWaitCauses[] = {"data", "no_worker", "compute", "push", "update", "checkpoint"};
constexpr absl::string_view kTransports[] = {"grpc", "shared_memory"};
constexpr absl::string_view kDiskDirections[] = {"read", "written"};
constexpr absl::string_view kMemoryKinds[] = {"state", "hold", "window", "checkpoint", "resident"};
constexpr absl::string_view kLimitKinds[] = {"window", "resident"};
constexpr absl::string_view kDeviceKinds[] = {"cap", "arena", "peak", "outside"};
constexpr absl::string_view kWorkerStates[] = {Name(worker_state::kAttaching), Name(worker_state::kIdle),
                                               Name(worker_state::kRunning), Name(worker_state::kLeaving)};
constexpr absl::string_view kStats[] = {"min", "median", "max"};
constexpr absl::string_view kExpertStats[] = {"mean", "max"};
constexpr absl::string_view kAnswers[] = {"chosen", "rejected"};

// ---- progress ----
constexpr MetricSpec kStart{.name = "eps_start_time_seconds",
                            .help = "When the daemon started, in seconds since 1970-01-01 UTC."};
constexpr MetricSpec kPhase{.name = "eps_run_phase",
                            .help = "1 for what the run is at, 0 for the others.",
                            .label = "phase",
                            .label_values = kPhases};
constexpr MetricSpec kStartDone{
    .name = "eps_start_done_bytes",
    .help = "While the daemon starts, of what it reads or makes now, which the log's work_begun names; then 0."};
constexpr MetricSpec kStartTotal{.name = "eps_start_total_bytes", .help = "Of the same; 0 too where it is not known."};
constexpr MetricSpec kRunSteps{.name = "eps_run_steps", .help = "Steps of the whole run."};
constexpr MetricSpec kStep{
    .name = "eps_step",
    .help = "Steps committed, over all sittings; a resume goes on from its checkpoint's, which may be less."};
constexpr MetricSpec kSteps{.name = "eps_steps_total", .type = kCounter, .help = "Steps committed in this sitting."};
constexpr MetricSpec kSkipped{.name = "eps_skipped_steps_total",
                              .type = kCounter,
                              .help = "Steps of this sitting whose gradient was not finite and that changed nothing."};
constexpr MetricSpec kLossScale{
    .name = "eps_loss_scale",
    .help =
        "What the gradients of the next step are multiplied by; 1 without FP16. It halves with each skipped step: one "
        "that falls on and on is a run that diverges."};
constexpr MetricSpec kStepSeconds{.name = "eps_step_seconds", .help = "Time of the last committed step."};
constexpr MetricSpec kPredictedStep{.name = "eps_predicted_step_seconds",
                                    .help =
                                        "What the newest worker's plan says that a step takes where it has all virtual "
                                        "nodes; 0: its device was not profiled."};
constexpr MetricSpec kStepAge{
    .name = "eps_step_age_seconds",
    .help = "Time since the last commit, or since the start: a run that stands still shows here."};
constexpr MetricSpec kStepWaits{.name = "eps_step_waits_total",
                                .type = kCounter,
                                .help = "Warnings of a step that waits too long; the log's step_waits says for whom."};
constexpr MetricSpec kStepWait{
    .name = "eps_step_wait_seconds",
    .help =
        "How long the step in progress has waited, by what it waits for now; 0 until that is too long, which the log "
        "warns of as step_waits.",
    .label = "cause",
    .label_values = kStepWaitCauses};
constexpr MetricSpec kEta{
    .name = "eps_eta_seconds",
    .help =
        "Time that is left: steps at the pace of the last ones, and each evaluation that is due as "
        "long as the newest; no sample once the run has failed."};
constexpr MetricSpec kTrainSeconds{
    .name = "eps_train_seconds_total",
    .type = kCounter,
    .help = "Time spent in committed steps of this sitting, without evaluations (eps_eval_seconds_total)."};
constexpr MetricSpec kLoss{.name = "eps_loss_nats",
                           .help = "Loss of the last committed step, mean per counted token (sample, pair)."};
constexpr MetricSpec kEvalLoss{.name = "eps_eval_loss",
                               .help =
                                   "Loss of the newest evaluation, mean per counted token (sample, pair); no sample "
                                   "before the first of this sitting."};
constexpr MetricSpec kEvalAccuracy{.name = "eps_eval_accuracy",
                                   .help =
                                       "Of the newest evaluation, the share of the counted tokens (samples) whose "
                                       "logit is the first of the largest; of "
                                       "pairs, whose better answer is preferred."};
constexpr MetricSpec kEvalStep{.name = "eps_eval_step", .help = "Steps committed when the newest evaluation was made."};
constexpr MetricSpec kEvalSeconds{.name = "eps_eval_seconds_total",
                                  .type = kCounter,
                                  .help = "Time spent in evaluations of this sitting that are over."};
constexpr MetricSpec kEvaluating{
    .name = "eps_evaluating_seconds",
    .help = "Time that the evaluation that goes on has taken so far, between two steps; 0 while none does."};
constexpr MetricSpec kEvaluatingShare{.name = "eps_evaluating_ratio",
                                      .help = "Of the same, the share of its samples that is done; 0 while none does."};
constexpr MetricSpec kLearningRate{.name = "eps_learning_rate", .help = "Of the last committed step."};
constexpr MetricSpec kNorm{
    .name = "eps_gradient_norm",
    .help = "Of the last committed step's mean gradient, before clipping; no sample if it was not finite."};
constexpr MetricSpec kPairAccuracy{
    .name = "eps_pair_accuracy",
    .help = "Of the last step, the share of pairs whose better answer is preferred; no sample without preferences."};
constexpr MetricSpec kPairReward{
    .name = "eps_pair_reward",
    .help =
        "Of the last step, the mean reward of the pairs' better answers and of the others: by DPO, beta times what the "
        "model finds an answer more probable than the one without its adapters, in nats; by SimPO and ORPO, beta "
        "times its mean log-probability per token. No sample without preferences.",
    .label = "answer",
    .label_values = kAnswers};
constexpr MetricSpec kExpertLoad{
    .name = "eps_expert_busiest_load",
    .help =
        "Of the last step, routed rows of a block's busiest expert over what each had if all had as many: the mean and "
        "the max over blocks; no sample without experts.",
    .label = "stat",
    .label_values = kExpertStats};
constexpr MetricSpec kExpertsIdle{
    .name = "eps_experts_idle",
    .help = "Experts, over all blocks that ran, without a row in the last step; no sample without experts."};
constexpr MetricSpec kExperts{.name = "eps_experts",
                              .help = "Experts of the blocks that ran in the last step; no sample without experts."};
constexpr MetricSpec kRunTokens{.name = "eps_tokens",
                                .help = "Tokens counted in committed steps, over all sittings, as eps_step."};
constexpr MetricSpec kTokens{
    .name = "eps_tokens_total", .type = kCounter, .help = "Tokens counted in committed steps of this sitting."};
constexpr MetricSpec kTokenRate{.name = "eps_tokens_per_second",
                                .help = "Counted tokens a second, over the last ten steps."};
constexpr MetricSpec kModelFlops{
    .name = "eps_model_flops_total",
    .type = kCounter,
    .help =
        "Floating-point operations that the model's mathematics asked for in committed steps of this sitting: a "
        "multiply-add as two; what is recomputed, and padding, are not counted."};
constexpr MetricSpec kModelFlopsRate{.name = "eps_model_flops_per_second",
                                     .help = "The same, over the last ten steps."};

// ---- data ----
constexpr MetricSpec kPulled{.name = "eps_pulled_bytes_total",
                             .type = kCounter,
                             .help = "Bytes of weights that workers pulled.",
                             .label = "transport",
                             .label_values = kTransports};
constexpr MetricSpec kPushed{
    .name = "eps_pushed_bytes_total",
    .type = kCounter,
    .help = "Bytes of gradients that workers pushed, as they came: over gRPC without lines of zeros.",
    .label = "transport",
    .label_values = kTransports};
constexpr MetricSpec kVersions{
    .name = "eps_versions_published_total", .type = kCounter, .help = "New versions of blobs that became readable."};
constexpr MetricSpec kBlobs{.name = "eps_blobs", .help = "Blobs of the model."};
constexpr MetricSpec kBlobsPending{.name = "eps_blobs_pending",
                                   .help = "Blobs whose next version, of the step in progress, is not readable yet."};
constexpr MetricSpec kPulls{.name = "eps_pulls_waiting",
                            .help = "Pulls of weights that wait for a version that is not there yet."};
constexpr MetricSpec kOffers{.name = "eps_offers_waiting", .help = "Contributions that wait for room in the window."};
constexpr MetricSpec kUpdated{.name = "eps_updated_parameters_total",
                              .type = kCounter,
                              .help = "Parameters updated by the optimizer, each once per step, padding counted."};
constexpr MetricSpec kUpdateMoved{
    .name = "eps_update_bytes_total",
    .type = kCounter,
    .help =
        "Bytes of gradients, weights and moments that summing, measuring and updating had to "
        "read and write."};
constexpr MetricSpec kUpdateFloor{
    .name = "eps_update_floor_bytes_per_second",
    .help =
        "What a plain loop reads and writes in memory in a second on one of the optimizer's threads beside the "
        "others, measured when the daemon started: the most that eps_update_bytes_total can grow by in a busy "
        "second. None of a model whose state is less than 64 MiB, which caches may hold."};
constexpr MetricSpec kUpdateBusy{
    .name = "eps_update_busy_seconds_total",
    .type = kCounter,
    .help = "Time that the optimizer's threads spent summing, measuring and updating, added over the threads."};
constexpr MetricSpec kOffloaded{
    .name = "eps_offloaded_bytes",
    .help = "Of the state, what lies on a disk (optimizer_offload): masters' rest and moments. 0: none."};
constexpr MetricSpec kOffloadMoved{
    .name = "eps_offload_bytes_total",
    .type = kCounter,
    .help = "Bytes that were read from the disk of optimizer_offload, and written there.",
    .label = "direction",
    .label_values = kDiskDirections};
constexpr MetricSpec kOffloadWait{
    .name = "eps_offload_wait_seconds_total",
    .type = kCounter,
    .help =
        "Time that threads waited for that disk, added over the threads: the optimizer's, whose wait is in "
        "eps_update_busy_seconds_total too, and those that read or copy a checkpoint."};

// ---- memory ----
constexpr MetricSpec kParameters{.name = "eps_parameters", .help = "Parameters of the model, padding not counted."};
constexpr MetricSpec kMemory{.name = "eps_memory_bytes",
                             .help =
                                 "The daemon's memory: state (masters, moments, wire, but for what lies on a disk), "
                                 "hold (EXACT clipping, FP16), "
                                 "window (contributions in flight, but for those read in inboxes), checkpoint (for "
                                 "copies that wait to be written), resident (the "
                                 "process).",
                             .label = "kind",
                             .label_values = kMemoryKinds};
constexpr MetricSpec kMemoryLimit{
    .name = "eps_memory_limit_bytes",
    .help =
        "What eps_memory_bytes of the same kind is to stay under: the window's size; what eps plan "
        "says the process takes, and the inboxes of workers that are connected.",
    .label = "kind",
    .label_values = kLimitKinds};
constexpr MetricSpec kDevice{
    .name = "eps_device_memory_bytes",
    .help =
        "Of a worker's device, the largest over the workers: the cap, the plan's arena, its peak so far, what "
        "libraries are known to hold outside of it.",
    .label = "kind",
    .label_values = kDeviceKinds};

// ---- workers ----
constexpr MetricSpec kWorkers{.name = "eps_workers",
                              .help = "Workers by state, those that are gone not counted.",
                              .label = "state",
                              .label_values = kWorkerStates};
constexpr MetricSpec kGrouped{.name = "eps_workers_in_groups",
                              .help = "Workers that pull and push as members of a group (relay.group_members)."};
constexpr MetricSpec kAttached{
    .name = "eps_workers_attached_total", .type = kCounter, .help = "Workers that attached in this sitting."};
constexpr MetricSpec kLost{.name = "eps_workers_lost_total",
                           .type = kCounter,
                           .help =
                               "Workers that were lost in this sitting: killed, hung, or their connection broke. Who "
                               "goes once the run is over, or has failed, is not."};
constexpr MetricSpec kRedone{
    .name = "eps_vnodes_redone_total",
    .type = kCounter,
    .help =
        "Virtual nodes that were lost with a worker, or with a group that ended, and have been "
        "computed again."};
constexpr MetricSpec kShareChanges{.name = "eps_vnode_share_changes_total",
                                   .type = kCounter,
                                   .help =
                                       "Times that virtual nodes were shared out otherwise by measured speed; what was "
                                       "tried and taken back counts twice."};
constexpr MetricSpec kLeaseAge{.name = "eps_lease_age_seconds",
                               .help = "Time since the last sign of life, the largest over the workers."};
constexpr MetricSpec kLeaseLimit{.name = "eps_lease_limit_seconds",
                                 .help = "The lease: a worker silent for so long is lost."};
constexpr MetricSpec kPass{.name = "eps_pass_seconds",
                           .help =
                               "Time of the workers' last passes, without waits for others and the daemon: a max far "
                               "above the median is a worker too slow for the vnodes that it has.",
                           .label = "stat",
                           .label_values = kStats};
constexpr MetricSpec kPasses{.name = "eps_passes_total", .type = kCounter, .help = "Passes that workers reported."};
constexpr MetricSpec kPassSeconds{
    .name = "eps_pass_seconds_total", .type = kCounter, .help = "Time of all passes, added over the workers."};
constexpr MetricSpec kWaits{.name = "eps_wait_seconds_total",
                            .type = kCounter,
                            .help = "Part of eps_pass_seconds_total in which compute waited, by cause.",
                            .label = "cause",
                            .label_values = kWaitCauses};

// ---- checkpoints ----
constexpr MetricSpec kCheckpointStep{
    .name = "eps_checkpoint_step", .help = "Steps done in the newest checkpoint on disk; no sample if there is none."};
constexpr MetricSpec kCheckpointEvery{.name = "eps_checkpoint_every_steps",
                                      .help = "The RunSpec's checkpoint.every_steps; 0: only at the end."};
constexpr MetricSpec kCheckpointAge{
    .name = "eps_checkpoint_age_seconds",
    .help = "Time since the newest checkpoint of this sitting was written; since the start if there is none."};
constexpr MetricSpec kCheckpointSeconds{.name = "eps_checkpoint_write_seconds",
                                        .help = "What the newest checkpoint of this sitting took to write."};
constexpr MetricSpec kCheckpointBytes{
    .name = "eps_checkpoint_bytes",
    .help = "Bytes of the newest checkpoint of this sitting, with what it shares with others."};
constexpr MetricSpec kCheckpointHolds{
    .name = "eps_checkpoint_hold_seconds_total",
    .type = kCounter,
    .help = "Time in which an update could have run, but waited for a checkpoint to copy its blob."};
constexpr MetricSpec kCheckpoints{
    .name = "eps_checkpoints_written_total", .type = kCounter, .help = "Checkpoints written in this sitting."};
constexpr MetricSpec kCheckpointFailures{
    .name = "eps_checkpoint_failures_total",
    .type = kCounter,
    .help = "Checkpoints of this sitting that could not be written; those before stand."};
constexpr MetricSpec kCheckpointFailing{.name = "eps_checkpoint_failing",
                                        .help = "1 from a checkpoint that could not be written until one was."};
constexpr MetricSpec kCheckpointWriting{
    .name = "eps_checkpoint_writing_seconds",
    .help = "Time that the checkpoint being written has taken so far; 0 while none is written."};

// ---- doors ----
constexpr MetricSpec kCertificateExpiry{
    .name = "eps_certificate_expiry_time_seconds",
    .help =
        "When the first of the daemon's certificates expires, in seconds since 1970-01-01 UTC: "
        "those in --tls-cert, and --tls-client-ca where it holds one alone; no sample without TLS."};
constexpr MetricSpec kKeysStale{
    .name = "eps_keys_stale",
    .help =
        "1 while the files of certificates or tokens have changed, and cannot be taken as they are: the log says "
        "why (keys_not_reloaded), and those from before go on."};

constexpr const MetricSpec* kTable[] = {
    &kStart,
    &kPhase,
    &kStartDone,
    &kStartTotal,
    &kRunSteps,
    &kStep,
    &kSteps,
    &kLossScale,
    &kSkipped,
    &kStepSeconds,
    &kPredictedStep,
    &kStepAge,
    &kStepWaits,
    &kStepWait,
    &kEta,
    &kTrainSeconds,
    &kLoss,
    &kEvalLoss,
    &kEvalAccuracy,
    &kEvalStep,
    &kEvalSeconds,
    &kEvaluating,
    &kEvaluatingShare,
    &kLearningRate,
    &kNorm,
    &kPairAccuracy,
    &kPairReward,
    &kExpertLoad,
    &kExpertsIdle,
    &kExperts,
    &kRunTokens,
    &kTokens,
    &kTokenRate,
    &kModelFlops,
    &kModelFlopsRate,
    &kPulled,
    &kPushed,
    &kVersions,
    &kBlobs,
    &kBlobsPending,
    &kPulls,
    &kOffers,
    &kUpdated,
    &kUpdateMoved,
    &kUpdateBusy,
    &kUpdateFloor,
    &kOffloaded,
    &kOffloadMoved,
    &kOffloadWait,
    &kParameters,
    &kMemory,
    &kMemoryLimit,
    &kDevice,
    &kWorkers,
    &kGrouped,
    &kAttached,
    &kLost,
    &kRedone,
    &kShareChanges,
    &kLeaseAge,
    &kLeaseLimit,
    &kPass,
    &kPasses,
    &kPassSeconds,
    &kWaits,
    &kCheckpointStep,
    &kCheckpointEvery,
    &kCheckpointAge,
    &kCheckpointSeconds,
    &kCheckpointBytes,
    &kCheckpointHolds,
    &kCheckpoints,
    &kCheckpointFailures,
    &kCheckpointFailing,
    &kCheckpointWriting,
    &kCertificateExpiry,
    &kKeysStale,
};

void SetProgress(const DaemonView& view, MetricPage& page) {
  const RunStatus& status = view.status;
  page.Set(kRunSteps, static_cast<double>(status.steps));
  page.Set(kStep, static_cast<double>(status.step));
  page.Set(kSteps, static_cast<double>(status.counts.steps));
  page.Set(kLossScale, status.loss_scale);
  page.Set(kSkipped, static_cast<double>(status.counts.skipped_steps));
  if (status.last_step_seconds > 0) page.Set(kStepSeconds, status.last_step_seconds);
  page.Set(kPredictedStep, status.predicted_step_seconds);
  page.Set(kStepAge, status.step_age_seconds);
  page.Set(kStepWaits, static_cast<double>(status.counts.step_waits));
  for (const absl::string_view cause : kStepWaitCauses) {
    const bool is_it = status.step_wait.has_value() && status.step_wait->cause == cause;
    page.Set(kStepWait, cause, is_it ? status.step_wait->seconds : 0);
  }
  if (status.eta_seconds >= 0) page.Set(kEta, status.eta_seconds);
  page.Set(kTrainSeconds, status.seconds);
  if (status.step > 0) page.Set(kLoss, status.loss);
  if (status.evaluation.has_value()) {
    page.Set(kEvalLoss, status.evaluation->loss);
    page.Set(kEvalAccuracy, status.evaluation->accuracy);
    page.Set(kEvalStep, static_cast<double>(status.evaluation->version.value()));
  }
  page.Set(kEvalSeconds, status.counts.evaluation_seconds);
  page.Set(kEvaluating, status.evaluating.has_value() ? status.evaluating->seconds : 0);
  page.Set(kEvaluatingShare, status.evaluating.has_value() ? status.evaluating->share : 0);
  if (status.learning_rate >= 0) page.Set(kLearningRate, status.learning_rate);
  if (status.gradient_norm >= 0) page.Set(kNorm, status.gradient_norm);
  if (status.pairs.has_value()) {
    page.Set(kPairAccuracy, status.pairs->accuracy);
    page.Set(kPairReward, "chosen", status.pairs->rewards.chosen);
    page.Set(kPairReward, "rejected", status.pairs->rewards.rejected);
  }
  if (status.expert_load.has_value()) {
    page.Set(kExpertLoad, "mean", status.expert_load->mean_busiest);
    page.Set(kExpertLoad, "max", status.expert_load->busiest);
    page.Set(kExpertsIdle, static_cast<double>(status.expert_load->idle));
    page.Set(kExperts, static_cast<double>(status.expert_load->running));
  }
  page.Set(kRunTokens, static_cast<double>(status.tokens));
  page.Set(kTokens, static_cast<double>(status.counts.tokens));
  page.Set(kTokenRate, status.tokens_per_second);
  page.Set(kModelFlops, status.counts.model_flops);
  page.Set(kModelFlopsRate, status.model_flops_per_second);
}

void SetData(const DaemonView& view, MetricPage& page) {
  const RunStatus& status = view.status;
  page.Set(kPulled, "grpc", static_cast<double>(view.grpc_pulled_bytes));
  page.Set(kPulled, "shared_memory", static_cast<double>(view.shared_memory_pulled_bytes));
  page.Set(kPushed, "grpc", static_cast<double>(view.grpc_pushed_bytes));
  page.Set(kPushed, "shared_memory", static_cast<double>(view.shared_memory_pushed_bytes));
  page.Set(kVersions, static_cast<double>(status.counts.versions_published));
  page.Set(kBlobs, static_cast<double>(status.blobs_updated.size()));
  page.Set(kBlobsPending, static_cast<double>(status.num_blobs_pending()));
  page.Set(kPulls, static_cast<double>(view.waiting_pulls));
  page.Set(kOffers, static_cast<double>(status.waiting_offers));
  page.Set(kUpdated, static_cast<double>(status.counts.updated_elems));
  page.Set(kUpdateMoved, static_cast<double>(status.counts.update_moved_bytes));
  page.Set(kUpdateBusy, status.counts.update_busy_seconds);
  if (view.floor_bytes_per_second > 0) page.Set(kUpdateFloor, view.floor_bytes_per_second);
  page.Set(kOffloaded, static_cast<double>(view.offloaded_bytes));
  page.Set(kOffloadMoved, "read", static_cast<double>(view.paging.read_bytes));
  page.Set(kOffloadMoved, "written", static_cast<double>(view.paging.written_bytes));
  page.Set(kOffloadWait, view.paging.wait_seconds);
}

void SetMemory(const DaemonView& view, MetricPage& page) {
  const RunStatus& status = view.status;
  page.Set(kParameters, static_cast<double>(status.parameters));
  page.Set(kMemory, "state", static_cast<double>(status.model_state_bytes));
  page.Set(kMemory, "hold", static_cast<double>(status.hold_bytes));
  page.Set(kMemory, "window", static_cast<double>(status.window_used_bytes));
  page.Set(kMemory, "checkpoint", static_cast<double>(view.checkpoint_buffer_bytes));
  page.Set(kMemory, "resident", static_cast<double>(status.resident_bytes));
  page.Set(kMemoryLimit, "window", static_cast<double>(status.window_bytes));
  if (view.expected_resident_bytes > 0) {
    page.Set(kMemoryLimit, "resident", static_cast<double>(view.expected_resident_bytes));
  }
}

void SetWorkers(const RunStatus& status, MetricPage& page) {
  std::map<WorkerState, int> states;
  int grouped = 0;
  int64_t cap_bytes = 0, arena_bytes = 0, peak_bytes = 0, outside_bytes = 0;
  absl::Duration silent;
  std::vector<double> passes;
  for (const WorkerStatus& worker : status.workers) {
    if (IsGone(worker.state)) continue;
    ++states[worker.state];
    if (worker.group_members > 0) ++grouped;
    cap_bytes = std::max(cap_bytes, worker.info.device_cap_bytes);
    arena_bytes = std::max(arena_bytes, worker.memory.device_arena_bytes);
    peak_bytes = std::max(peak_bytes, worker.last_pass.device_peak_bytes);
    outside_bytes = std::max(outside_bytes, worker.memory.device_outside_bytes);
    silent = std::max(silent, worker.silent_for);
    if (worker.last_pass.seconds > 0) passes.push_back(worker.last_pass.OwnSeconds());
  }
  for (const WorkerState state :
       {WorkerState::kAttaching, WorkerState::kIdle, WorkerState::kRunning, WorkerState::kLeaving}) {
    page.Set(kWorkers, WorkerStateName(state), states[state]);
  }
  page.Set(kGrouped, static_cast<double>(grouped));
  page.Set(kDevice, "cap", static_cast<double>(cap_bytes));
  page.Set(kDevice, "arena", static_cast<double>(arena_bytes));
  page.Set(kDevice, "peak", static_cast<double>(peak_bytes));
  page.Set(kDevice, "outside", static_cast<double>(outside_bytes));
  page.Set(kLeaseAge, absl::ToDoubleSeconds(silent));
  page.Set(kLeaseLimit, status.lease_seconds);
  if (passes.empty()) return;
  std::sort(passes.begin(), passes.end());
  page.Set(kPass, "min", passes.front());
  page.Set(kPass, "median", passes[(passes.size() - 1) / 2]);
  page.Set(kPass, "max", passes.back());
}

void SetCounts(const RunCounts& counts, MetricPage& page) {
  page.Set(kAttached, static_cast<double>(counts.workers_attached));
  page.Set(kLost, static_cast<double>(counts.workers_lost));
  page.Set(kRedone, static_cast<double>(counts.vnodes_redone));
  page.Set(kShareChanges, static_cast<double>(counts.share_changes));
  page.Set(kPasses, static_cast<double>(counts.passes));
  page.Set(kPassSeconds, counts.pass_seconds);
  for (const absl::string_view cause : kWaitCauses) page.Set(kWaits, cause, 0);
  for (const auto& [cause, seconds] : counts.wait_seconds) {
    if (IsLabelValue(kWaits, cause)) page.Set(kWaits, cause, seconds);  // it came from a worker
  }
}

void SetCheckpoints(const DaemonView& view, MetricPage& page) {
  const RunStatus& status = view.status;
  if (status.checkpoint_step >= 0) page.Set(kCheckpointStep, static_cast<double>(status.checkpoint_step));
  page.Set(kCheckpointEvery, static_cast<double>(view.checkpoint_every_steps));
  page.Set(kCheckpointAge, status.checkpoint_age_seconds);
  if (status.checkpoints_written > 0) {
    page.Set(kCheckpointSeconds, status.checkpoint_write_seconds);
    page.Set(kCheckpointBytes, static_cast<double>(status.checkpoint_bytes));
  }
  page.Set(kCheckpointHolds, status.counts.update_held_seconds);
  page.Set(kCheckpoints, static_cast<double>(status.checkpoints_written));
  page.Set(kCheckpointFailures, static_cast<double>(status.checkpoint_failures));
  page.Set(kCheckpointFailing, status.checkpoint_error.empty() ? 0 : 1);
  page.Set(kCheckpointWriting, status.checkpoint_writing_seconds);
}

}  // namespace

MetricTable DaemonMetricTable() { return kTable; }

std::string DaemonMetricsText(const DaemonView& view, double start_seconds) {
  MetricPage page(kTable);
  page.Set(kStart, start_seconds);
  page.SetOneOf(kPhase, view.phase);
  page.Set(kStartDone, static_cast<double>(view.start_work.done_bytes));
  page.Set(kStartTotal, static_cast<double>(view.start_work.total_bytes));
  if (view.keys.expires != absl::InfiniteFuture()) {
    page.Set(kCertificateExpiry, absl::ToDoubleSeconds(view.keys.expires - absl::UnixEpoch()));
  }
  if (view.phase != run_state::kStarting) {  // before that nothing is known of the run
    SetProgress(view, page);
    SetData(view, page);
    SetMemory(view, page);
    SetWorkers(view.status, page);
    SetCounts(view.status.counts, page);
    SetCheckpoints(view, page);
    page.Set(kKeysStale, view.keys.not_reloaded.empty() ? 0 : 1);
  }
  return page.Text();
}

std::string WorkerTargetsJson(const DaemonView& view) {
  // One that attached anew has the address of its former self, whose lease may not have run out: the newest counts.
  std::map<std::string, WorkerId> workers;
  for (const WorkerStatus& worker : view.status.workers) {
    if (IsGone(worker.state) || worker.info.metrics_address.empty()) continue;
    WorkerId& newest = workers[worker.info.metrics_address];
    newest = std::max(newest, worker.id);
  }
  nlohmann::json groups = nlohmann::json::array();
  for (const auto& [address, worker] : workers) {
    groups.push_back({{"targets", nlohmann::json::array({address})},
                      {"labels", {{"job", "gpu_worker"}, {"worker", absl::StrCat(worker.value())}}}});
  }
  return groups.dump() + "\n";
}

}  // namespace eps::server
