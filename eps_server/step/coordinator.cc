#include "eps_server/step/coordinator.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/update_counts.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/run_config.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/incarnation.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/optimizer/update_engine.h"
#include "eps_server/step/checkpoint_ledger.h"
#include "eps_server/step/checkpoint_writer.h"
#include "eps_server/step/coordinator_impl.h"

namespace eps::server {
namespace {

// The order in which blobs are updated: deferred in pull order, eager as backward completes them.
std::vector<BlobId> UpdateOrder(const ModelSpec& model, bool deferred) {
  std::vector<BlobId> order;
  for (const BlobSpec& blob : model.blobs) order.push_back(blob.id);
  if (deferred) return order;
  const auto first_use = [&](BlobId id) {
    return *std::min_element(model.blob(id).uses.begin(), model.blob(id).uses.end());
  };
  std::stable_sort(order.begin(), order.end(), [&](BlobId a, BlobId b) { return first_use(a) > first_use(b); });
  return order;
}

int64_t LastStep(const RunConfig& run, std::optional<int64_t> most_steps) {
  return std::min(run.steps, most_steps.value_or(run.steps));
}

absl::Status CheckExpectedWorkers(int workers) {
  if (workers >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("expected_workers: ", workers, ", must be positive"));
}

}  // namespace

CoordinatorImpl::CoordinatorImpl(Options options)
    : model_(*options.model),
      run_(*options.run),
      store_(*options.store),
      checkpointer_(*options.checkpointer),
      observers_(std::move(options.observers)),
      witness_(options.witness),
      trace_(options.trace),
      data_(std::move(options.data)),
      evaluation_data_(std::move(options.evaluation_data)),
      expect_timeout_(options.expect_timeout),
      lease_(options.lease),
      clock_(std::move(options.clock)),
      start_(clock_()),
      first_version_(options.resume.version),
      update_order_(UpdateOrder(model_, run_.defers_updates())),
      drop_(model_, run_.layer_drop),
      told_experts_(ToldExpertsOf(model_.config, run_.batch.virtual_nodes)),
      flops_(model_, run_.preferences.has_reference()),
      members_(options.lease),
      groups_(&NewIncarnation, run_.relay.group_members),
      choices_(options.resume.choices),
      device_models_(run_.relay.device_models, options.resume.device_models),
      expected_workers_(options.expected_workers),
      progress_(std::move(options.resume), start_),
      step_(first_version_.value()),
      makes_steps_(options.most_steps != 0),
      end_(std::max(LastStep(run_, options.most_steps), first_version_.value())),
      balancer_(run_.batch.virtual_nodes),
      gate_(first_version_),
      evaluation_(run_.evaluation, run_.steps, evaluation_data_ == nullptr ? 0 : evaluation_data_->num_rounds(),
                  first_version_),
      checkpoints_(run_.checkpoint.every_steps, first_version_, checkpointer_.LatestPath(), start_) {
  watch_.OnProgress(start_);
  for (const BlobUse& use : model_.layers.front().blobs) first_layer_.push_back(use.blob);
  for (const BlobSpec& blob : model_.blobs) {
    if (blob.frozen) frozen_.push_back(blob.id);
  }
}

absl::Status CoordinatorImpl::Start(int threads, int64_t window_bytes) {
  StepId first_step;
  int64_t skipped_steps = 0;
  double last_norm = 0;
  LossScale loss_scale;
  std::vector<int64_t> updates;
  bool is_unknown = false;  // with which device models the steps so far were computed
  {
    MutexLock lock(mu_);
    first_step = step_;
    skipped_steps = progress_.state().skipped_steps;
    last_norm = progress_.state().last_norm;
    loss_scale = progress_.state().loss_scale;
    EPS_RETURN_IF_ERROR(device_models_.CheckRule());
    is_unknown = first_version_.value() > 0 && device_models_.used().empty();
    EPS_ASSIGN_OR_RETURN(updates_, UpdatesOfBlobs(progress_.state(), model_));
    updates = updates_;
  }
  if (is_unknown && run_.relay.device_models == DeviceModelRule::kOne) {
    LogWarning(
        "device_models_unknown",
        {{"step", first_step.value()},
         {"means", "the checkpoint is of a program that did not keep them: the next worker's counts as the run's"}});
  }
  EPS_ASSIGN_OR_RETURN(engine_, UpdateEngine::Create({.model = &model_,
                                                      .run = &run_,
                                                      .store = &store_,
                                                      .witness = witness_,
                                                      .trace = trace_,
                                                      .threads = threads,
                                                      .first_step = first_step,
                                                      .skipped_steps = skipped_steps,
                                                      .updates = std::move(updates),
                                                      .last_norm = last_norm,
                                                      .loss_scale = loss_scale,
                                                      .on_blob_made = [this](BlobId b, Version v) { OnBlobMade(b, v); },
                                                      .on_step_decided = [this] { OnStepDecided(); },
                                                      .on_step_made = [this](const StepUpdate& u) { OnStepMade(u); },
                                                      .on_failure = [this](absl::Status s) { Fail(std::move(s)); }}));
  EPS_ASSIGN_OR_RETURN(aggregator_,
                       Aggregator::Create({.model = &model_,
                                           .virtual_nodes = run_.batch.virtual_nodes,
                                           .gradients = run_.precision.gradients,
                                           .window_bytes = window_bytes,
                                           .consume =
                                               [this](StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) {
                                                 engine_->Submit(step, blob, chunk, std::move(gradient));
                                               },
                                           .show_later_uses =
                                               [this](StepId step, BlobId blob, int64_t chunk, ChunkGradient gradient) {
                                                 engine_->SubmitLaterUses(step, blob, chunk, std::move(gradient));
                                               },
                                           .on_step_in = [this](StepId step) { OnStepIn(step); }}));
  writer_ = std::make_unique<CheckpointWriter>(&checkpointer_, &store_);
  for (const BlobSpec& blob : model_.blobs) store_.Publish(blob.id, ReadVersion(first_step));
  loop_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

CoordinatorImpl::~CoordinatorImpl() {
  {
    MutexLock lock(mu_);
    shutdown_ = true;
    wake_.NotifyAll();
  }
  if (loop_.joinable()) loop_.join();
  writer_.reset();  // it releases updates of the engine
  engine_.reset();  // it gives memory back to the aggregator
  aggregator_.reset();
}

absl::Status CoordinatorImpl::ExpectWorkers(int workers) {
  EPS_RETURN_IF_ERROR(CheckExpectedWorkers(workers));
  {
    MutexLock lock(mu_);
    expected_workers_ = workers;
    Wake();
  }
  LogInfo("workers_expected", {{"workers", workers}});
  return absl::OkStatus();
}

void CoordinatorImpl::RequestCheckpoint(CheckpointLedger::Answer done) {
  absl::StatusOr<std::string> answer;
  {
    MutexLock lock(mu_);
    if (!over_ && makes_steps_) {
      checkpoints_.Request(std::move(done));
      Wake();
      return;
    }
    answer = !makes_steps_   ? absl::FailedPreconditionError("this daemon evaluates, and makes no checkpoint")
             : failure_.ok() ? absl::StatusOr<std::string>(checkpoints_.newest_path())
                             : absl::FailedPreconditionError(absl::StrCat("the run has failed: ", failure_.message()));
  }
  done(std::move(answer));
}

absl::StatusOr<int64_t> CoordinatorImpl::RequestStop(std::string reason) {
  int64_t last = 0;
  {
    MutexLock lock(mu_);
    if (over_) return progress_.state().version.value();
    stop_requested_ = true;
    end_ = std::min(end_, step_.value() + (open_.has_value() ? 1 : 0));
    EndWithoutWorkers(absl::OkStatus());
    if (!failure_.ok()) return absl::FailedPreconditionError(failure_.message());
    last = end_;
    Wake();
  }
  LogInfo("stop_requested", {{"reason", reason}, {"after_steps", last}});
  return last;
}

void CoordinatorImpl::ExpectReturn() {
  MutexLock lock(mu_);
  returns_ = true;
}

void CoordinatorImpl::Fail(absl::Status why) {
  MutexLock lock(mu_);
  FailLocked(std::move(why));
}

absl::Status CoordinatorImpl::WaitUntilFinished() {
  MutexLock lock(mu_);
  while (!told_) over_cv_.Wait(mu_);
  return failure_;
}

void CoordinatorImpl::FailLocked(absl::Status why) {
  if (over_ || !failure_.ok()) return;  // the first reason is the cause
  failure_ = std::move(why);
  Wake();
}

void CoordinatorImpl::OnBlobMade(BlobId blob, Version version) {
  if (IsFirstLayer(blob)) {
    MutexLock lock(mu_);
    if (version > gate_) {
      behind_gate_.push_back(blob);
      return;
    }
  }
  store_.Publish(blob, version);
}

void CoordinatorImpl::OnStepDecided() {
  MutexLock lock(mu_);
  Wake();
}

void CoordinatorImpl::OnStepMade(const StepUpdate& update) {
  MutexLock lock(mu_);
  made_.push_back(update);
  Wake();
}

void CoordinatorImpl::OnStepIn(StepId step) {
  MutexLock lock(mu_);
  contributions_in_ = step;
  Wake();
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Create(Options options) {
  EPS_CHECK(options.model != nullptr && options.run != nullptr && options.store != nullptr);
  EPS_CHECK(options.checkpointer != nullptr && (options.data != nullptr || options.most_steps == 0) && options.clock);
  EPS_CHECK(options.run->evaluation.is_on() == (options.evaluation_data != nullptr));
  EPS_RETURN_IF_ERROR(CheckExpectedWorkers(options.expected_workers));
  if (options.lease <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lease: ", absl::FormatDuration(options.lease), ", must be positive"));
  }
  if (options.threads < 1) {
    return absl::InvalidArgumentError(absl::StrCat("threads: ", options.threads, ", must be positive"));
  }
  const int threads = options.threads;
  const int64_t window_bytes = options.window_bytes;
  auto coordinator = std::make_unique<CoordinatorImpl>(std::move(options));
  EPS_RETURN_IF_ERROR(coordinator->Start(threads, window_bytes));
  return coordinator;
}

}  // namespace eps::server
