// Who takes part in the run: workers come, say what they did, form groups, and are lost.

#include "eps_server/step/coordinator_impl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/log.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "eps_server/membership/groups.h"
#include "eps_server/membership/membership.h"
#include "eps_server/optimizer/divergence.h"
#include "eps_server/step/vnode_ledger.h"

namespace eps::server {
namespace {

// Not looking at leases for so long: the loop does every 50 ms, and on a busy machine somewhat later.
constexpr absl::Duration kStandstill = absl::Seconds(1);

}  // namespace

absl::StatusOr<WorkerId> CoordinatorImpl::Attach(WorkerInfo info) {
  EPS_RETURN_IF_ERROR(CheckWorkerInfo(info));  // before its device model is told to anybody
  const WorkerInfo shown = info;
  WorkerId worker;
  absl::StatusOr<std::string> mixed_with;
  {
    MutexLock lock(mu_);
    if (over_) return Over();
    mixed_with = device_models_.Admit(info.device_model, members_.OtherDeviceModel(info.device_model));
    if (mixed_with.ok()) {
      EPS_ASSIGN_OR_RETURN(worker, members_.Attach(std::move(info), clock_()));
      ++counts_.workers_attached;
    }
  }
  if (!mixed_with.ok()) {
    LogWarning("worker_refused", {{"host", shown.host_name},
                                  {"process", shown.process_id},
                                  {"device_model", shown.device_model},
                                  {"why", mixed_with.status().message()}});
    return mixed_with.status();
  }
  if (!mixed_with->empty()) {
    LogWarning(
        "device_models_differ",
        {{"worker", worker.value()},
         {"device_model", shown.device_model},
         {"other", *mixed_with},
         {"means", "the run goes on; its bits are promised for one device model only"},
         {"next", "where they matter: relay.device_models: ONE, and --vectors for processors of several kinds"}});
  }
  LogAttached(worker, shown);
  return worker;
}

absl::Status CoordinatorImpl::Connect(WorkerId worker, std::shared_ptr<WorkerChannel> channel) {
  MutexLock lock(mu_);
  if (over_) return Over();
  return members_.Connect(worker, std::move(channel), clock_());
}

absl::Status CoordinatorImpl::Heartbeat(WorkerId worker) {
  MutexLock lock(mu_);
  return members_.Renew(worker, clock_());
}

Choices CoordinatorImpl::HeldChoices(const std::string& device_model) const {
  MutexLock lock(mu_);
  return choices_.Held(device_model);
}

absl::StatusOr<Choices> CoordinatorImpl::OfferChoices(WorkerId worker, Choices offered) {
  std::string device_model;
  bool is_first = false;
  absl::StatusOr<Choices> held;
  {
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(members_.Renew(worker, clock_()));
    device_model = members_.DeviceModel(worker);
    is_first = choices_.Held(device_model).empty();
    held = choices_.Offer(device_model, std::move(offered));
  }
  if (held.ok() && is_first) {
    LogInfo("choices_held", {{"worker", worker.value()}, {"device_model", device_model}, {"choices", held->size()}});
  }
  return held;
}

absl::Status CoordinatorImpl::Ready(WorkerId worker, WorkerMemory memory) {
  bool is_new = false;
  int ready = 0, expected = 0;
  std::optional<absl::Duration> to_start;
  {
    MutexLock lock(mu_);
    EPS_ASSIGN_OR_RETURN(is_new, members_.Ready(worker, memory, clock_()));
    predicted_step_seconds_ = memory.predicted_step_seconds;
    watch_.Expect(absl::Seconds(predicted_step_seconds_));
    ready = static_cast<int>(members_.ReadyWorkers().size());
    expected = expected_workers_;
    to_start = TimeToStart(clock_());
    Wake();
  }
  if (!is_new) return absl::OkStatus();  // however often it says so
  LogInfo("worker_ready", {{"worker", worker.value()},
                           {"device_arena_bytes", memory.device_arena_bytes},
                           {"device_outside_bytes", memory.device_outside_bytes},
                           {"host_bytes", memory.host_bytes}});
  if (to_start.value_or(absl::ZeroDuration()) > absl::ZeroDuration()) {
    LogInfo("waits_for_workers",
            {{"ready", ready}, {"expected", expected}, {"begins_in_seconds", absl::ToDoubleSeconds(*to_start)}});
  }
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::PassDone(WorkerId worker, StepId step, std::vector<VnodeRecord> records,
                                       PassTiming timing) {
  MutexLock lock(mu_);
  EPS_RETURN_IF_ERROR(members_.Renew(worker, clock_()));
  if (over_ || members_.IsLetGo(worker)) return absl::OkStatus();
  if (step > step_ || step.value() < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("pass_done.step: ", step.value(), ", must be 0 to ", step_.value(), ", the step in progress"));
  }
  if (step == step_ && ledger() == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("pass_done.step: ", step.value(), ", which has not begun"));
  }
  if (step == step_) {
    EPS_RETURN_IF_ERROR(ledger()->AddRecords(worker, records));
    counts_.vnodes_redone += ledger()->TakeRedone();
    open_->passes.Add(timing);
    balancer_.OnPass(worker, timing.OwnSeconds() / ShareOfLayers(step));
    if (const std::optional<int> vnode = ledger()->NonfiniteVnode(); vnode && !SkipsNonfinite()) {
      FailLocked(DivergedError(step, absl::StrCat("the loss of vnode ", *vnode, " is not finite")));
    }
  }
  return CountPass(worker, std::move(timing));
}

absl::Status CoordinatorImpl::EvaluationDone(WorkerId worker, Version version, int64_t round,
                                             std::vector<VnodeRecord> records, PassTiming timing) {
  MutexLock lock(mu_);
  EPS_RETURN_IF_ERROR(members_.Renew(worker, clock_()));
  if (over_ || members_.IsLetGo(worker)) return absl::OkStatus();
  EPS_RETURN_IF_ERROR(evaluation_.AddRecords(worker, version, round, records));
  counts_.vnodes_redone += evaluation_.TakeRedone();
  return CountPass(worker, std::move(timing));
}

absl::Status CoordinatorImpl::CountPass(WorkerId worker, PassTiming timing) {
  all_passes_.Add(timing);
  ++counts_.passes;
  device_peak_bytes_ = std::max(device_peak_bytes_, timing.device_peak_bytes);
  Wake();
  return members_.RecordPass(worker, std::move(timing), clock_());
}

absl::Status CoordinatorImpl::ReportGroup(WorkerId worker, const GroupReport& report) {
  int vnodes = 0;
  size_t members = 0;
  bool ended = false;
  StepId step;
  {
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(members_.Renew(worker, clock_()));
    std::vector<GroupOrder> orders;
    if (report.kind == GroupReport::Kind::kFounded) {
      EPS_RETURN_IF_ERROR(groups_.Founded(worker, report.group, report.text, orders));
    } else if (report.kind == GroupReport::Kind::kJoined) {
      if (groups_.Joined(worker, report.group)) members = groups_.size(report.group);
    } else {
      ended = groups_.Failed(worker, report.group, report.text, orders);
      if (ended) vnodes = LoseGroups({report.group});
      FailUnlessRedoable(vnodes);
    }
    QueueGroupOrders(std::move(orders));
    Wake();
    step = step_;
  }
  if (members > 0) LogInfo("group_formed", {{"step", step.value()}, {"members", members}});
  if (!ended) return absl::OkStatus();
  LogWarning("group_failed",
             {{"worker", worker.value()}, {"step", step.value()}, {"vnodes_to_redo", vnodes}, {"why", report.text}});
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::Leave(WorkerId worker) {
  bool is_new = false;
  {
    MutexLock lock(mu_);
    EPS_ASSIGN_OR_RETURN(is_new, members_.Leave(worker, clock_()));
    Wake();
  }
  if (is_new) LogInfo("worker_leaves", {{"worker", worker.value()}});
  return absl::OkStatus();
}

absl::Status CoordinatorImpl::Drain(absl::Span<const WorkerId> workers) {
  std::vector<WorkerId> told;
  {
    MutexLock lock(mu_);
    EPS_ASSIGN_OR_RETURN(told, members_.Drain(workers));
    Wake();
  }
  for (const WorkerId worker : told) LogInfo("worker_drained", {{"worker", worker.value()}});
  return absl::OkStatus();
}

void CoordinatorImpl::ReleaseLeaving(Actions& actions) {
  const std::vector<WorkerId> leaving = members_.LeavingWorkers();
  if (leaving.empty()) return;
  const VnodeLedger* of_step = ledger();
  const VnodeLedger* of_round = evaluation_.ledger();
  const bool step_needs = of_step != nullptr && !IsAllIn(),
             round_needs = of_round != nullptr && !of_round->AllRecordsIn();
  for (const WorkerId worker : leaving) {
    if ((step_needs && of_step->TakesPart(worker)) || (round_needs && of_round->TakesPart(worker))) continue;
    members_.LetGo(worker);
    TakeBack(worker);
    actions.push_back([worker, channel = members_.channel(worker), step = step_] {
      LogGone(worker, step, {.by_itself = true}, absl::OkStatus());
      if (channel != nullptr) channel->SendFinish({.ok = true, .reason = "it was asked to leave"});
    });
  }
}

void CoordinatorImpl::Disconnect(WorkerId worker, absl::Status why) {
  Gone gone;
  StepId step;
  {
    MutexLock lock(mu_);
    if (!members_.Contains(worker)) return;
    if (members_.IsLetGo(worker)) {
      members_.Remove(worker);
      return;
    }
    gone = Lose(worker, why);
    step = step_;
    Wake();
  }
  LogGone(worker, step, gone, why);
}

void CoordinatorImpl::ExpireLeases(Actions& actions) {
  const absl::Duration now = clock_();
  // Who was frozen or suspended itself heard of nobody meanwhile, and what they have sent since is read first.
  if (now - std::exchange(leases_seen_at_, now) > std::max(lease_ / 2, kStandstill))
    no_expiry_before_ = now + lease_ / 2;
  if (now < no_expiry_before_) return;
  for (const WorkerId worker : members_.Expired(now)) {
    if (members_.IsLetGo(worker)) {
      members_.Remove(worker);
      continue;
    }
    std::shared_ptr<WorkerChannel> channel = members_.channel(worker);
    const absl::Status why =
        absl::DeadlineExceededError(absl::StrCat("not heard of for ", absl::FormatDuration(lease_)));
    const Gone gone = Lose(worker, why);
    actions.push_back([worker, gone, why, channel, step = step_] {
      LogGone(worker, step, gone, why);
      if (channel != nullptr) channel->Close(why);
    });
  }
}

CoordinatorImpl::Gone CoordinatorImpl::Lose(WorkerId worker, const absl::Status& why) {
  // Before what its going may itself bring about. Nobody misses who goes then, however it goes.
  const bool is_run_over = over_ || !failure_.ok();
  Gone gone{.vnodes = TakeBack(worker)};
  gone.by_itself = is_run_over || (why.ok() && gone.vnodes == 0);
  members_.Remove(worker, gone.by_itself ? WorkerState::kLeft : WorkerState::kLost);
  counts_.workers_lost += gone.by_itself ? 0 : 1;
  if (open_.has_value() && gone.vnodes > 0) open_->lost_vnodes = true;
  return gone;
}

int CoordinatorImpl::TakeBack(WorkerId worker) {
  std::vector<uint64_t> lost_groups;
  QueueGroupOrders(groups_.Lose(worker, lost_groups));
  int vnodes = LoseGroups(lost_groups);
  if (ledger() != nullptr && ledger()->Holds(worker)) vnodes += ledger()->Lose(worker, aggregator_->MissingVnodes());
  FailUnlessRedoable(vnodes);
  return vnodes + evaluation_.Lose(worker);
}

int CoordinatorImpl::LoseGroups(absl::Span<const uint64_t> groups) {
  int vnodes = 0;
  if (ledger() == nullptr || groups.empty()) return vnodes;
  const std::vector<bool> missing = aggregator_->MissingVnodes();
  for (const uint64_t group : groups) vnodes += ledger()->LoseGroup(group, missing);
  return vnodes;
}

void CoordinatorImpl::FailUnlessRedoable(int vnodes) {
  if (vnodes == 0 || run_.keeps_weights_of_step()) return;
  FailLocked(absl::AbortedError(absl::StrCat(
      "step ", step_.value(), ": ", vnodes, vnodes == 1 ? " virtual node" : " virtual nodes",
      " of a lost worker, or of a group that ended, cannot be run again, as precision.wire_versions is 1 and updates "
      "overwrite the step's weights: go on from the newest checkpoint (--resume), with precision.wire_versions=2 for "
      "steps that outlive a loss")));
}

void CoordinatorImpl::QueueGroupOrders(std::vector<GroupOrder> orders) {
  if (orders.empty()) return;
  for (GroupOrder& order : orders) group_orders_.push_back(std::move(order));
  Wake();
}

void CoordinatorImpl::SendGroupOrders(Actions& actions) {
  for (GroupOrder& order : std::exchange(group_orders_, {})) {
    std::shared_ptr<WorkerChannel> channel = members_.channel(order.worker);
    if (channel == nullptr) continue;
    actions.push_back([channel, order = std::move(order)] {
      LogGroupOrder(order);
      channel->SendGroupOrder(order);
    });
  }
}

void CoordinatorImpl::LogGroupOrder(const GroupOrder& order) {
  if (order.kind == GroupOrder::Kind::kFound) {
    LogInfo("group_forms", {{"worker", order.worker.value()}, {"members", order.size}});
  } else if (order.kind == GroupOrder::Kind::kEnd) {
    LogInfo("group_ended", {{"worker", order.worker.value()}, {"why", order.reason}});
  }
}

void CoordinatorImpl::LogGone(WorkerId worker, StepId step, const Gone& gone, const absl::Status& why) {
  if (gone.by_itself) {
    LogInfo("worker_left", {{"worker", worker.value()}, {"step", step.value()}});
    return;
  }
  LogWarning("worker_lost", {{"worker", worker.value()},
                             {"step", step.value()},
                             {"vnodes_to_redo", gone.vnodes},
                             {"why", why.ok() ? absl::string_view("it left") : why.message()}});
}

}  // namespace eps::server
