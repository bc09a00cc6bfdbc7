#include "gpu_worker/session.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/model/layer_drop.h"
#include "gpu_worker/device_sizes.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/predict_step.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/step_costs.h"
#include "gpu_worker/telemetry/worker_metrics.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_control.h"
#include "gpu_worker/transport/grpc_transport.h"
#include "gpu_worker/transport/shared_memory_transport.h"

namespace eps::worker {

void Link::Watch(Transport* transport, Control* control) {
  MutexLock lock(mu_);
  transport_ = transport;
  control_ = control;
  if (!failure_.ok()) CancelBoth();
}

// Under the lock: neither Cancel blocks, or calls back.
void Link::CancelBoth() {
  if (transport_ != nullptr) transport_->Cancel(failure_);
  if (control_ != nullptr) control_->Cancel(failure_);
}

void Link::Fail(absl::Status why) {
  MutexLock lock(mu_);  // held to the end, so that Unwatch waits
  if (!failure_.ok()) return;
  failure_ = std::move(why);
  CancelBoth();
}

absl::Status Link::failure() const {
  MutexLock lock(mu_);
  return failure_;
}

absl::Status NotOfTheDevice(absl::Status status) {
  return absl::IsResourceExhausted(status) ? absl::InternalError(status.message()) : status;
}

namespace {

// Workers that may form a group: on one host, by the same means, with plans that divide a layer alike, and with the
// same transport: weights that are read in place are not exchanged.
std::string GroupKind(const std::string& means, const std::string& transport, const RelayPlan& plan) {
  if (plan.group_area.num_bytes == 0) return "";
  return absl::StrCat(means, " host ", HostIdentity(), " transport ", transport, " area ", plan.group_area.num_bytes,
                      " leaves ", plan.max_subtree_leaves(), " pass ", plan.max_pass_vnodes);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const WorkerOptions& options, const DeviceBackend& backend,
                                                       Attachment attachment, WorkerPage& page) {
  std::unique_ptr<Session> session(new Session(options, std::move(attachment), page));
  page.Update([](WorkerView& view) {
    view.phase = WorkerPhase::kPreparing;
    ++view.attachments;
  });
  EPS_RETURN_IF_ERROR(NotOfTheDevice(session->Connect(backend)));
  if (absl::Status status = session->Prepare(backend); !status.ok()) {
    session->control_->SendFailed(status);
    return status;
  }
  return session;
}

Session::~Session() {
  if (options_.leave != nullptr) options_.leave->Unattend();
  executor_.reset();  // it uses the transport
  if (seat_ != nullptr) seat_->Leave();
  link_.Unwatch();
}

void Session::LoseLink(absl::Status why) {
  link_.Fail(why);
  seat_->EndAny(std::move(why));
}

absl::Status Session::Connect(const DeviceBackend& backend) {
  EPS_ASSIGN_OR_RETURN(model_, BuildModel(attachment_.run.model));
  seat_ = std::make_unique<GroupSeat>(
      attachment_.run.relay.group_members > 1 ? backend.group_maker() : nullptr,
      GroupSeat::Reports{
          .founded = [this](uint64_t group, const std::string& token) { control_->SendGroupFounded(group, token); },
          .joined = [this](uint64_t group) { control_->SendGroupJoined(group); },
          .failed = [this](uint64_t group, const absl::Status& why) { control_->SendGroupFailed(group, why); }});
  EPS_ASSIGN_OR_RETURN(
      control_,
      OpenGrpcControl(options_.address, attachment_,
                      {.on_lost = [this](absl::Status why) { LoseLink(std::move(why)); },
                       .on_group_end = [this](uint64_t group, absl::Status why) { seat_->End(group, std::move(why)); }},
                      options_.credentials));
  link_.Watch(nullptr, control_.get());
  return absl::OkStatus();
}

absl::Status Session::OpenTransport(const RelayPlan& plan, bool pins_weights) {
  const auto on_failure = [this](absl::Status why) { LoseLink(std::move(why)); };
  const TransportChoice choice = options_.transport.value_or(attachment_.run.transport);
  if (choice != TransportChoice::kGrpc) {
    auto shared = attachment_.shared_memory_socket.empty()
                      ? absl::FailedPreconditionError("the daemon does not offer it")
                      : ConnectSharedMemory({.socket_path = attachment_.shared_memory_socket,
                                             .incarnation = attachment_.incarnation,
                                             .worker_id = attachment_.worker_id,
                                             .model = &model_,
                                             .wire_dtype = attachment_.run.precision.wire,
                                             .wire_versions = attachment_.run.precision.wire_versions,
                                             .pins_weights = pins_weights,
                                             .push_bytes = attachment_.serving ? 0 : plan.host_push_bytes,
                                             .on_failure = on_failure});
    if (shared.ok()) {
      transport_ = *std::move(shared);
      transport_name_ = "shared_memory";
      return absl::OkStatus();
    }
    if (choice == TransportChoice::kSharedMemory) return Annotate(shared.status(), "transport: SHARED_MEMORY");
    LogInfo("shared_memory_not_used", {{"reason", shared.status().ToString()}});
  }
  transport_ = NewGrpcTransport({.channels = {NewDataChannel(options_.address, options_.credentials),
                                              NewDataChannel(options_.address, options_.credentials)},
                                 .incarnation = attachment_.incarnation,
                                 .worker_id = attachment_.worker_id,
                                 .model = &model_,
                                 .wire_dtype = attachment_.run.precision.wire,
                                 .on_failure = on_failure});
  transport_name_ = "grpc";
  return absl::OkStatus();
}

int64_t Session::ArenaCap(const KernelSizes& kernels) const {
  if (!options_.is_default_memory || IsOnHost(options_.device)) return options_.device_memory_bytes;
  const int64_t outside = kernels.outside_bytes(LibraryUseOf(attachment_.run, options_.threads));
  return std::max<int64_t>(1, options_.device_memory_bytes - outside);
}

absl::Status Session::Prepare(const DeviceBackend& backend) {
  const Dtype wire = attachment_.run.precision.wire;
  const std::string group_kind = seat_->kind();
  const int max_group_members = group_kind.empty() ? 0 : attachment_.run.relay.group_members;
  const absl::Time begin = absl::Now();
  const Profile profile = options_.profile != nullptr ? *options_.profile : NominalProfile(options_.device);
  const PlanRequest request = {.model = &model_,
                               .run = &attachment_.run,
                               .kernels = backend.kernels(wire),
                               .cap_bytes = ArenaCap(backend.kernels(wire)),
                               .max_group_members = max_group_members,
                               .host_stash_bytes = options_.host_stash_bytes,
                               .profile = &profile,
                               .link = LinkOf(options_.device, options_.transport.value_or(attachment_.run.transport)),
                               // Who samples has no RunSpec to change.
                               .suggests = !attachment_.serving};
  EPS_ASSIGN_OR_RETURN(RelayPlan plan, MakeRelayPlan(request));
  const double predicted_step_seconds =
      options_.profile == nullptr
          ? 0
          : PredictStep(request, plan, {.dropped = LayerDrop(model_, attachment_.run.layer_drop).Average()})
                .timeline.step_seconds;
  LogInfo("plan_made", {{"seconds", absl::ToDoubleSeconds(absl::Now() - begin)},
                        {"profile", profile.measured},
                        {"predicted_step_seconds", predicted_step_seconds},
                        {"inner_kept", plan.inner.kept},
                        {"inner_swapped", plan.inner.swapped},
                        {"inner_recomputed", plan.inner.recomputed()},
                        {"depth_first_blocks", plan.depth_first_blocks},
                        {"keeps_logits", plan.keeps_logits},
                        {"boundary_slots", plan.boundary_slots.size()},
                        {"device_arena_bytes", plan.arena_bytes}});
  EPS_RETURN_IF_ERROR(NotOfTheDevice(OpenTransport(plan, backend.pins_weights)));
  link_.Watch(transport_.get(), control_.get());
  absl::StatusOr<std::unique_ptr<Device>> device =
      backend.create({.arena_bytes = plan.arena_bytes,
                      .threads = options_.threads,
                      .wire = wire,
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
  memory_ = {
      .device_arena_bytes = plan.arena_bytes,
      .device_outside_bytes = device_->outside_bytes(),
      .host_bytes = plan.host_boundary_bytes + plan.host_inner_bytes + plan.host_push_bytes + plan.host_pass_bytes,
      .transport = transport_name_,
      .group_kind = GroupKind(group_kind, transport_name_, plan),
      .predicted_step_seconds = predicted_step_seconds};
  auto executor = RelayExecutor::Create({.model = &model_,
                                         .run = &attachment_.run,
                                         .device = device_.get(),
                                         .transport = transport_.get(),
                                         .plan = std::move(plan),
                                         .witness = options_.witness,
                                         .alter_schedule = options_.hooks.alter_schedule,
                                         .trace = options_.trace,
                                         .is_awaited = [this] { return control_->HasNext(); }});
  if (!executor.ok()) return NotOfTheDevice(executor.status());
  executor_ = *std::move(executor);
  return NotOfTheDevice(Choose());
}

absl::Status Session::Choose() {
  Kernels* survey = attachment_.serving ? nullptr : device_->survey();  // texts are promised to nobody bit for bit
  if (survey == nullptr) {
    SayReady();
    return absl::OkStatus();
  }
  executor_->Survey(*survey);
  if (!attachment_.choices.empty()) return Follow(attachment_.choices);
  const absl::Time begin = absl::Now();
  EPS_ASSIGN_OR_RETURN(const Choices choices, device_->Choose(attachment_.run.precision.algorithms));
  LogInfo("choices_made", {{"choices", choices.size()}, {"seconds", absl::ToDoubleSeconds(absl::Now() - begin)}});
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

Session::End Session::Run() {
  while (true) {
    const absl::StatusOr<Order> order = control_->Next();
    if (!order.ok()) return {.status = order.status(), .link_failed = true};
    if (const auto* finish = std::get_if<FinishOrder>(&*order)) {
      LogInfo("worker_finish", {{"ok", finish->ok ? 1 : 0}, {"reason", finish->reason}});
      if (finish->ok) return {};
      return {.status = absl::AbortedError(absl::StrCat("the daemon ended this worker: ", finish->reason))};
    }
    const absl::Status status = Carry(*order);
    if (status.ok()) continue;
    // A broken link is the cause, whatever followed from it.
    if (absl::Status link = link_.failure(); !link.ok()) return {.status = link, .link_failed = true};
    control_->SendFailed(status);
    return {.status = status};
  }
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
      return absl::InvalidArgumentError(absl::StrCat("assign.group: rank ", assigned.rank, " of ", assigned.size(),
                                                     ", this worker has joined as ", group->rank(), " of ",
                                                     group->size()));
    }
  }
  absl::StatusOr<PassResult> passed = executor_->Run(assignment, group);
  // Else it is this worker's own error, which has ended the group as well.
  const bool by_the_group = group != nullptr && absl::IsAborted(passed.status()) && !group->status().ok();
  if (by_the_group && link_.failure().ok()) return GiveUp(assignment.group->group, passed.status());
  EPS_ASSIGN_OR_RETURN(PassResult result, std::move(passed));
  PassReport report = {.step = assignment.step,
                       .evaluation_round = assignment.evaluation_round,
                       .records = std::move(result.records),
                       .seconds = result.seconds,
                       .wait_seconds = {},
                       .device_peak_bytes = device_->arena_high_water_bytes()};
  for (int cause = 0; cause < kNumWaitCauses; ++cause) {
    if (static_cast<WaitCause>(cause) == WaitCause::kNone) continue;
    const auto name = WaitCauseName(static_cast<WaitCause>(cause));
    report.wait_seconds[std::string(name.data(), name.size())] = result.compute_wait_seconds[cause];
  }
  SayOutsideMemory();
  page_.Update([&](WorkerView& view) {
    view.phase = WorkerPhase::kIdle;
    ++view.passes;
    view.last_pass_seconds = report.seconds;
    view.pass_seconds += report.seconds;
    for (const auto& [cause, waited] : report.wait_seconds) view.wait_seconds[cause] += waited;
    view.device_peak_bytes = report.device_peak_bytes;
  });
  control_->SendPassDone(report);
  return absl::OkStatus();
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
  auto logits = executor_->NextTokenLogits(attachment_.serving_version, order.tokens);
  if (!link_.failure().ok()) return logits.status();
  control_->SendInferred(order.request_id, std::move(logits));
  return absl::OkStatus();
}

}  // namespace eps::worker
