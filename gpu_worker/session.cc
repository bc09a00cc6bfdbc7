#include "gpu_worker/session.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/exit_code.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/model/layer_drop.h"
#include "common/model/model_spec.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/group/group_seat.h"
#include "gpu_worker/link.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/predict_step.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/step_costs.h"
#include "gpu_worker/profile/kept_profile.h"
#include "gpu_worker/relay/relay_executor.h"
#include "gpu_worker/telemetry/worker_metrics.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {
namespace {

// How much later the control stream may say that the daemon has gone than what else there is of it.
constexpr absl::Duration kLinkPatience = absl::Seconds(1);

// Workers that may form a group: on one host, by the same means, with plans that divide a layer alike, and with the
// same transport: weights that are read in place are not exchanged. When a layer is pulled, and so the order of
// exchanges, goes by the weight slots.
std::string GroupKind(const std::string& means, const std::string& transport, const RelayPlan& plan) {
  if (plan.group_area.num_bytes == 0) return "";
  return absl::StrCat(means, " host ", HostIdentity(), " transport ", transport, " area ", plan.group_area.num_bytes,
                      " leaves ", plan.max_subtree_leaves(), " pass ", plan.max_pass_vnodes, " weight slots ",
                      plan.weight_slots.size());
}

// What compute waited for, by kWaitCauses.
std::map<std::string, double> WaitSeconds(const PassResult& result) {
  std::map<std::string, double> wait_seconds;
  for (int cause = 0; cause < kNumWaitCauses; ++cause) {
    if (static_cast<WaitCause>(cause) == WaitCause::kNone) continue;
    wait_seconds[std::string(WaitCauseName(static_cast<WaitCause>(cause)))] = result.compute_wait_seconds[cause];
  }
  return wait_seconds;
}

// What is in flight between RunSession's begin and end.
//
// Threads: one, but for LoseGroup
class Session {
 public:
  Session(const WorkerOptions& options, const DeviceBackend& backend, const DaemonConnections& connections,
          Attachment attachment, WorkerPage& page)
      : options_(options),
        backend_(backend),
        connections_(connections),
        attachment_(std::move(attachment)),
        page_(page) {}
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Everything before the first order. Errors: not said to the daemon yet
  absl::Status Open();
  // Carries orders out until there are no more.
  SessionEnd Run();
  // After an error: what it was in truth, and the daemon knows of it.
  SessionEnd EndOf(absl::Status status);

 private:
  absl::Status Connect();
  // With the link, which it cannot do without. Any thread.
  void LoseGroup(absl::Status why) { seat_->EndAny(std::move(why)); }
  // Whether the link has failed, of which `status` may be a consequence.
  bool HasLostLink(const absl::Status& status) const;

  absl::Status Prepare();
  int64_t ArenaCap(const KernelSizes& kernels) const;
  PlanRequest RequestOf(const Profile& profile) const;
  absl::StatusOr<RelayPlan> MakePlan(const PlanRequest& request);
  absl::Status OpenTransport(const RelayPlan& plan);
  absl::Status MakeDevice(const PlanRequest& request, const RelayPlan& plan);
  absl::Status MakeExecutor(RelayPlan plan);
  // Follows what holds for this device model and says Ready, or says what this device would choose.
  absl::Status Choose();
  absl::Status Follow(const Choices& choices);
  void SayOutsideMemory();
  void SayReady();
  // A pass is over: the page has it, and that the worker waits again.
  void ShowPass(double seconds, const std::map<std::string, double>& wait_seconds);

  absl::Status Carry(const Order& order);  // no FinishOrder
  absl::Status Carry(const Assignment& assignment);
  // In a group that has ended: the daemon is told, and gives the step's vnodes out anew.
  absl::Status GiveUp(uint64_t group, const absl::Status& why);
  absl::Status Carry(const InferOrder& order);
  absl::Status Carry(const FormGroupOrder& order);
  absl::Status Carry(const EndGroupOrder& order);
  absl::Status Carry(const ChoicesOrder& order);

  // Fixed after Open. Rising order of use: the later ones point to the earlier ones.
  const WorkerOptions& options_;
  const DeviceBackend& backend_;
  const DaemonConnections& connections_;
  const Attachment attachment_;
  WorkerPage& page_;
  ModelSpec model_;
  Link link_;
  std::unique_ptr<GroupSeat> seat_;  // whose group the connections end with themselves
  NamedTransport transport_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Device> device_;  // may have pinned the transport's memory
  std::unique_ptr<RelayExecutor> executor_;
  MemoryReport memory_;  // device_outside_bytes: of the newest pass
  // Choices were offered, and those that hold have not come.
  bool awaits_choices_ = false;
};

Session::~Session() {
  if (options_.leave != nullptr) options_.leave->Unattend();
  executor_.reset();  // it uses the transport
  if (seat_ != nullptr) seat_->Leave();
  link_.Unwatch();
}

absl::Status Session::Open() {
  page_.Update([](WorkerView& view) {
    view.phase = WorkerPhase::kPreparing;
    ++view.attachments;
  });
  EPS_RETURN_IF_ERROR(NotOfTheDevice(Connect()));
  return Prepare();
}

absl::Status Session::Connect() {
  EPS_ASSIGN_OR_RETURN(model_, BuildModel(attachment_.run.model));
  seat_ = std::make_unique<GroupSeat>(
      attachment_.run.relay.group_members > 1 ? backend_.group_maker() : nullptr,
      GroupSeat::Reports{
          .founded = [this](uint64_t group, const std::string& token) { control_->SendGroupFounded(group, token); },
          .joined = [this](uint64_t group) { control_->SendGroupJoined(group); },
          .failed = [this](uint64_t group, const absl::Status& why) { control_->SendGroupFailed(group, why); }});
  EPS_ASSIGN_OR_RETURN(
      control_, connections_.open_control(
                    attachment_,
                    {.on_lost =
                         [this](absl::Status why) {
                           link_.ControlFailed(why);
                           LoseGroup(std::move(why));
                         },
                     .on_group_end = [this](uint64_t group, absl::Status why) { seat_->End(group, std::move(why)); }}));
  link_.Watch(nullptr, control_.get());
  return absl::OkStatus();
}

absl::Status Session::Prepare() {
  const Profile profile = options_.profile != nullptr ? *options_.profile : NominalProfile(options_.device);
  const PlanRequest request = RequestOf(profile);
  EPS_ASSIGN_OR_RETURN(RelayPlan plan, MakePlan(request));
  EPS_RETURN_IF_ERROR(NotOfTheDevice(OpenTransport(plan)));
  EPS_RETURN_IF_ERROR(MakeDevice(request, plan));
  EPS_RETURN_IF_ERROR(NotOfTheDevice(MakeExecutor(std::move(plan))));
  return NotOfTheDevice(Choose());
}

int64_t Session::ArenaCap(const KernelSizes& kernels) const {
  if (!options_.is_default_memory || IsOnHost(options_.device)) return options_.device_memory_bytes;
  const int64_t outside = kernels.outside_bytes(LibraryUseOf(attachment_.run, options_.threads));
  return std::max<int64_t>(1, options_.device_memory_bytes - outside);
}

// `profile` outlives it.
PlanRequest Session::RequestOf(const Profile& profile) const {
  const KernelSizes kernels = backend_.kernels(attachment_.run.precision.wire);
  return {.model = &model_,
          .run = &attachment_.run,
          .kernels = kernels,
          .cap_bytes = ArenaCap(kernels),
          .max_group_members = seat_->kind().empty() ? 0 : attachment_.run.relay.group_members,
          .host_stash_bytes = options_.host_stash_bytes,
          .profile = &profile,
          .link = LinkOf(options_.device, options_.transport.value_or(attachment_.run.transport)),
          // Who samples has no RunSpec to change.
          .suggests = !attachment_.serving};
}

absl::StatusOr<RelayPlan> Session::MakePlan(const PlanRequest& request) {
  const absl::Duration begin = SteadyNow();
  EPS_ASSIGN_OR_RETURN(RelayPlan plan, MakeRelayPlan(request));
  if (options_.profile != nullptr) {
    const Prediction predicted =
        PredictStep(request, plan, {.dropped = LayerDrop(model_, attachment_.run.layer_drop).Average()});
    memory_.predicted_step_seconds = predicted.timeline.step_seconds;
  }
  LogInfo("plan_made", {{"seconds", absl::ToDoubleSeconds(SteadyNow() - begin)},
                        {"profile", options_.profile != nullptr ? options_.profile_file : kNominalProfile},
                        {"profile_hardware", request.profile->hardware},
                        {"profile_measured", request.profile->measured},
                        {"predicted_step_seconds", memory_.predicted_step_seconds},
                        {"inner_kept", plan.inner.kept},
                        {"inner_swapped", plan.inner.swapped},
                        {"inner_recomputed", plan.inner.recomputed()},
                        {"depth_first_blocks", plan.depth_first_blocks},
                        {"keeps_logits", plan.keeps_logits},
                        {"boundary_slots", plan.boundary_slots.size()},
                        {"device_arena_bytes", plan.arena_bytes}});
  return plan;
}

absl::Status Session::OpenTransport(const RelayPlan& plan) {
  absl::StatusOr<NamedTransport> opened =
      connections_.open_transport({.attachment = &attachment_,
                                   .model = &model_,
                                   .choice = options_.transport.value_or(attachment_.run.transport),
                                   .pins_weights = backend_.pins_weights,
                                   .push_bytes = attachment_.serving ? 0 : plan.host_push_bytes,
                                   .is_wanted = [this] { return link_.failure().ok(); },
                                   .on_failure =
                                       [this](absl::Status why) {
                                         link_.TransportFailed(why);
                                         LoseGroup(std::move(why));
                                       }});
  if (!opened.ok()) {
    // Perhaps because the daemon has just gone, and may come again.
    EPS_RETURN_IF_ERROR(link_.AwaitFailure(kLinkPatience));
    return opened.status();
  }
  transport_ = *std::move(opened);
  link_.Watch(transport_.transport.get(), control_.get());
  return absl::OkStatus();
}

absl::Status Session::MakeDevice(const PlanRequest& request, const RelayPlan& plan) {
  absl::StatusOr<std::unique_ptr<Device>> device =
      backend_.create({.arena_bytes = plan.arena_bytes,
                       .threads = options_.threads,
                       .wire = attachment_.run.precision.wire,
                       .tf32 = attachment_.run.precision.tf32,
                       .plain_attention = attachment_.run.precision.plain_attention,
                       .graphs = attachment_.run.relay.graphs});
  if (absl::IsResourceExhausted(device.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the device has no ", plan.arena_bytes, " bytes free, which the plan takes (", device.status().message(),
        "); this run needs at least ", SmallestCapBytes(request), " bytes: a smaller --device-memory"));
  }
  EPS_RETURN_IF_ERROR(device.status());
  device_ = *std::move(device);
  if (options_.hooks.wrap_device) device_ = options_.hooks.wrap_device(std::move(device_));
  return absl::OkStatus();
}

absl::Status Session::MakeExecutor(RelayPlan plan) {
  memory_.device_arena_bytes = plan.arena_bytes;
  memory_.device_outside_bytes = device_->outside_bytes();
  memory_.host_bytes = plan.host_bytes();
  memory_.transport = transport_.name;
  memory_.group_kind = GroupKind(seat_->kind(), transport_.name, plan);
  EPS_ASSIGN_OR_RETURN(executor_, RelayExecutor::Create({.model = &model_,
                                                         .run = &attachment_.run,
                                                         .device = device_.get(),
                                                         .transport = transport_.transport.get(),
                                                         .plan = std::move(plan),
                                                         .witness = options_.witness,
                                                         .alter_schedule = options_.hooks.alter_schedule,
                                                         .trace = options_.trace,
                                                         .is_awaited = [this] { return control_->HasNext(); }}));
  return absl::OkStatus();
}

absl::Status Session::Choose() {
  Kernels* survey = attachment_.serving ? nullptr : device_->survey();  // texts are promised to nobody bit for bit
  if (survey == nullptr) {
    SayReady();
    return absl::OkStatus();
  }
  executor_->Survey(*survey);
  if (!attachment_.choices.empty()) return Follow(attachment_.choices);
  const absl::Duration begin = SteadyNow();
  EPS_ASSIGN_OR_RETURN(const Choices choices, device_->Choose(attachment_.run.precision.algorithms));
  LogInfo("choices_made", {{"choices", choices.size()}, {"seconds", absl::ToDoubleSeconds(SteadyNow() - begin)}});
  if (choices.empty()) return Follow(choices);
  awaits_choices_ = true;
  control_->SendChoices(choices);
  return absl::OkStatus();
}

absl::Status Session::Follow(const Choices& choices) {
  EPS_RETURN_IF_ERROR(device_->Follow(choices));
  LogInfo("choices_followed", {{"choices", choices.size()}});
  SayReady();
  return absl::OkStatus();
}

void Session::SayReady() {
  LogInfo("worker_ready", {{"worker", attachment_.worker_id.value()},
                           {"transport", memory_.transport},
                           {"device_arena_bytes", memory_.device_arena_bytes},
                           {"device_outside_bytes", memory_.device_outside_bytes},
                           {"host_bytes", memory_.host_bytes},
                           {"threads", options_.threads}});
  page_.Update([&](WorkerView& view) {
    view.phase = WorkerPhase::kIdle;
    view.device_arena_bytes = memory_.device_arena_bytes;
    view.device_outside_bytes = memory_.device_outside_bytes;
    view.host_bytes = memory_.host_bytes;
  });
  if (options_.leave != nullptr) options_.leave->Attend([this] { control_->SendLeave(); });
  control_->SendReady(memory_);
}

// Libraries take some of it when they are first used.
void Session::SayOutsideMemory() {
  if (device_->outside_bytes() == memory_.device_outside_bytes) return;
  memory_.device_outside_bytes = device_->outside_bytes();
  LogInfo("device_memory_grew", {{"device_outside_bytes", memory_.device_outside_bytes}});
  page_.Update([&](WorkerView& view) { view.device_outside_bytes = memory_.device_outside_bytes; });
}

SessionEnd Session::Run() {
  while (true) {
    const absl::StatusOr<Order> order = control_->Next();
    if (!order.ok()) {
      // What broke the other connection came first.
      const absl::Status link = link_.failure();
      return {.status = link.ok() ? order.status() : link, .link_failed = true};
    }
    if (const auto* finish = std::get_if<FinishOrder>(&*order)) {
      LogInfo("worker_finish", {{"ok", finish->ok ? 1 : 0}, {"reason", finish->reason}});
      if (finish->run_may_go_on && options_.until_done) {
        return {.status = absl::UnavailableError("it ended before its run was done"), .daemon_was_stopped = true};
      }
      if (finish->ok) return {};
      return {.status = absl::AbortedError(absl::StrCat("the daemon ended this worker: ", finish->reason))};
    }
    if (absl::Status status = Carry(*order); !status.ok()) return EndOf(std::move(status));
  }
}

bool Session::HasLostLink(const absl::Status& status) const {
  return !(MayAttachAnew(status) ? link_.AwaitFailure(kLinkPatience) : link_.failure()).ok();
}

SessionEnd Session::EndOf(absl::Status status) {
  // A broken link is the cause, whatever followed from it.
  if (HasLostLink(status)) return {.status = link_.failure(), .link_failed = true};
  if (control_ != nullptr) control_->SendFailed(status);
  return {.status = std::move(status)};
}

absl::Status Session::Carry(const Order& order) {
  if (const auto* choices = std::get_if<ChoicesOrder>(&order)) return Carry(*choices);
  if (awaits_choices_) return absl::InternalError("the daemon gave work before it said which choices hold");
  if (const auto* form = std::get_if<FormGroupOrder>(&order)) return Carry(*form);
  if (const auto* end = std::get_if<EndGroupOrder>(&order)) return Carry(*end);
  const auto* assignment = std::get_if<Assignment>(&order);
  return assignment != nullptr ? Carry(*assignment) : Carry(std::get<InferOrder>(order));
}

absl::Status Session::Carry(const ChoicesOrder& order) {
  if (!awaits_choices_) return absl::InternalError("the daemon sent choices that were not asked for");
  awaits_choices_ = false;
  return Follow(order.choices);
}

absl::Status Session::Carry(const Assignment& assignment) {
  page_.Update([&](WorkerView& view) {
    view.phase = WorkerPhase::kRunning;
    view.step = assignment.step.value();
    view.vnodes = static_cast<int64_t>(assignment.vnodes.size());
  });
  Group* group = nullptr;
  if (assignment.group.has_value()) {
    const GroupVnodes& assigned = *assignment.group;
    group = seat_->Find(assigned.group);
    if (group == nullptr) return GiveUp(assigned.group, absl::AbortedError("this worker is not in it any more"));
    if (group->rank() != assigned.rank || group->size() != assigned.size()) {
      const absl::Status wrong = absl::InvalidArgumentError(
          absl::StrCat("assign.group: rank ", assigned.rank, " of ", assigned.size(), ", this worker has joined as ",
                       group->rank(), " of ", group->size()));
      group->End(wrong);
      return wrong;
    }
  }
  absl::StatusOr<PassResult> passed = executor_->Run(assignment, group);
  // Else it is this worker's own error, which ends the group as well: the others wait for what it does not do any more.
  const bool by_the_group = group != nullptr && absl::IsAborted(passed.status()) && !group->status().ok();
  if (by_the_group && link_.failure().ok()) return GiveUp(assignment.group->group, passed.status());
  if (group != nullptr && !passed.ok()) group->End(passed.status());
  EPS_ASSIGN_OR_RETURN(PassResult result, std::move(passed));
  SayOutsideMemory();
  const PassReport report = {.step = assignment.step,
                             .evaluation_round = assignment.evaluation_round,
                             .records = std::move(result.records),
                             .seconds = result.seconds,
                             .wait_seconds = WaitSeconds(result),
                             .device_peak_bytes = device_->arena_high_water_bytes(),
                             .device_outside_bytes = memory_.device_outside_bytes};
  ShowPass(report.seconds, report.wait_seconds);
  control_->SendPassDone(report);
  return absl::OkStatus();
}

void Session::ShowPass(double seconds, const std::map<std::string, double>& wait_seconds) {
  page_.Update([&](WorkerView& view) {
    view.phase = WorkerPhase::kIdle;
    ++view.passes;
    view.last_pass_seconds = seconds;
    view.pass_seconds += seconds;
    for (const auto& [cause, waited] : wait_seconds) view.wait_seconds[cause] += waited;
    view.device_peak_bytes = device_->arena_high_water_bytes();
  });
}

absl::Status Session::GiveUp(uint64_t group, const absl::Status& why) {
  LogWarning("group_lost", {{"error", why.ToString()}});
  control_->SendGroupFailed(group, why);
  page_.Update([](WorkerView& view) { view.phase = WorkerPhase::kIdle; });
  return absl::OkStatus();
}

absl::Status Session::Carry(const FormGroupOrder& order) {
  seat_->Take(*device_, order.group, order.rank, order.size, order.token);
  return absl::OkStatus();
}

absl::Status Session::Carry(const EndGroupOrder& order) {
  LogInfo("group_ended", {{"reason", order.reason}});
  if (seat_->Find(order.group) != nullptr) seat_->Leave();
  return absl::OkStatus();
}

absl::Status Session::Carry(const InferOrder& order) {
  page_.Update([](WorkerView& view) { view.phase = WorkerPhase::kRunning; });
  const absl::Duration begin = SteadyNow();
  absl::StatusOr<std::vector<float>> logits = executor_->NextTokenLogits(attachment_.serving_version, order.tokens);
  const absl::Status status = logits.status();
  if (!status.ok() && HasLostLink(status)) return status;  // nobody to answer, who gives the text to another worker
  if (status.ok()) {
    SayOutsideMemory();
    ShowPass(absl::ToDoubleSeconds(SteadyNow() - begin), {});
  } else {
    page_.Update([](WorkerView& view) { view.phase = WorkerPhase::kIdle; });
  }
  control_->SendInferred(order.request_id, std::move(logits));
  // The text's own error, or this worker's: the next text would fail as this one did, and as it fails at once, the daemon
  // would give this worker every text.
  return absl::IsInvalidArgument(status) ? absl::OkStatus() : status;
}

}  // namespace

SessionEnd RunSession(const WorkerOptions& options, const DeviceBackend& backend, const DaemonConnections& connections,
                      Attachment attachment, WorkerPage& page) {
  Session session(options, backend, connections, std::move(attachment), page);
  if (absl::Status status = session.Open(); !status.ok()) return session.EndOf(std::move(status));
  SessionEnd end = session.Run();
  end.was_open = true;
  return end;
}

}  // namespace eps::worker
