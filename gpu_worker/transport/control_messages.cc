#include "gpu_worker/transport/control_messages.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/choices/choices.h"
#include "common/choices/choices_message.h"
#include "common/schedule/group_limits.h"
#include "common/schedule/loss_scale.h"

namespace eps::worker {
namespace {

constexpr int64_t kMaxLeaseMillis = 86'400'000;  // a day: as --lease-millis

template <typename Number>
absl::Status Wrong(absl::string_view field, Number found, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", found, ", want ", wanted));
}

// int32 little endian, as this processor has them.
std::vector<int32_t> ToInts(const std::string& bytes) {
  std::vector<int32_t> values(bytes.size() / sizeof(int32_t));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(int32_t));
  return values;
}

absl::Status CheckIds(absl::string_view field, const std::vector<int32_t>& ids, int64_t vocab, bool may_skip) {
  for (const int32_t id : ids) {
    if ((id < 0 || id >= vocab) && !(may_skip && id == kNotCounted)) {
      return Wrong(field, id, absl::StrCat("below ", vocab));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<VnodeBatch> ToVnode(const proto::VnodeData& data, const RunConfig& run) {
  const std::string where = absl::StrCat("assign.vnodes[", data.vnode(), "]");
  if (data.vnode() < 0 || data.vnode() >= run.batch.virtual_nodes) {
    return Wrong("assign.vnodes.vnode", data.vnode(), absl::StrCat("below ", run.batch.virtual_nodes));
  }
  const size_t want_bytes = static_cast<size_t>(run.batch.sequences_per_vnode() * run.model.context) * sizeof(int32_t);
  const auto check_bytes = [&](absl::string_view field, const std::string& bytes, size_t want) {
    if (bytes.size() == want) return absl::OkStatus();
    return Wrong(absl::StrCat(where, field, " bytes"), static_cast<int64_t>(bytes.size()), absl::StrCat(want));
  };
  EPS_RETURN_IF_ERROR(check_bytes(".tokens", data.tokens(), want_bytes));
  const auto label_bytes =
      static_cast<size_t>(run.batch.sequences_per_vnode() * run.model.labels_per_sample()) * sizeof(int32_t);
  EPS_RETURN_IF_ERROR(check_bytes(".labels", data.labels(), label_bytes));
  EPS_RETURN_IF_ERROR(
      check_bytes(".types", data.types(), run.model.num_types > 0 && !data.types().empty() ? want_bytes : 0));
  EPS_RETURN_IF_ERROR(check_bytes(".document_first", data.document_first(), run.data.has_documents() ? want_bytes : 0));
  VnodeBatch batch = {.vnode = data.vnode(),
                      .tokens = ToInts(data.tokens()),
                      .labels = ToInts(data.labels()),
                      .types = ToInts(data.types()),
                      .document_first = ToInts(data.document_first())};
  EPS_RETURN_IF_ERROR_WITH(DocumentEnds(batch.document_first, run.model.context).status(), where);
  EPS_RETURN_IF_ERROR(CheckIds(absl::StrCat(where, ".tokens"), batch.tokens, run.model.vocab, false));
  EPS_RETURN_IF_ERROR(CheckIds(absl::StrCat(where, ".types"), batch.types, run.model.num_types, false));
  EPS_RETURN_IF_ERROR(CheckIds(absl::StrCat(where, ".labels"), batch.labels, run.model.num_outputs(), true));
  return batch;
}

absl::StatusOr<GroupVnodes> ToGroup(const proto::AssignedGroup& from, const std::vector<VnodeBatch>& own) {
  if (from.group() == 0) return Wrong("assign.group.group", 0, "another number");
  if (from.members_size() < 2 || from.members_size() > kMaxGroupMembers) {
    return Wrong("assign.group.members", from.members_size(), absl::StrCat("2 to ", kMaxGroupMembers));
  }
  if (from.rank() < 0 || from.rank() >= from.members_size()) {
    return Wrong("assign.group.rank", from.rank(), absl::StrCat("below ", from.members_size()));
  }
  GroupVnodes group{.group = from.group(), .rank = from.rank(), .vnodes = {}};
  for (const proto::MemberVnodes& member : from.members()) {
    group.vnodes.emplace_back(member.vnodes().begin(), member.vnodes().end());
  }
  std::vector<int> assigned;
  for (const VnodeBatch& batch : own) assigned.push_back(batch.vnode);
  if (group.vnodes[static_cast<size_t>(group.rank)] != assigned) {
    return absl::InvalidArgumentError(
        absl::StrCat("assign.group.members[", group.rank, "].vnodes: other than the assignment's own"));
  }
  return group;
}

// Whether they are what the run drops in that step is the executor's to know: it has the model.
absl::StatusOr<std::vector<LayerId>> ToDropped(const proto::Assign& assign, const RunConfig& run) {
  std::vector<LayerId> dropped;
  for (const int32_t layer : assign.dropped_layers()) {
    const int32_t last = dropped.empty() ? 0 : dropped.back().value();
    if (layer <= last || layer > run.model.num_layers) {
      return Wrong("assign.dropped_layers", layer, absl::StrCat(last + 1, " to ", run.model.num_layers, ", rising"));
    }
    dropped.push_back(LayerId(layer));
  }
  if (!dropped.empty() && assign.has_evaluation_round()) {
    return absl::InvalidArgumentError("assign.dropped_layers: given, but an evaluation runs all layers");
  }
  return dropped;
}

absl::StatusOr<Order> ToAssignment(const proto::Assign& assign, const RunConfig& run) {
  const bool evaluates = assign.has_evaluation_round();
  if (evaluates && assign.evaluation_round() < 0) {
    return Wrong("assign.evaluation_round", assign.evaluation_round(), "at least 0");
  }
  if (evaluates && assign.has_group()) {
    return absl::InvalidArgumentError("assign.group: given, but an evaluation is made by each worker alone");
  }
  if (assign.step() < 0 || assign.step() >= run.steps + (evaluates ? 1 : 0)) {
    return Wrong("assign.step", assign.step(), absl::StrCat("below ", run.steps + (evaluates ? 1 : 0)));
  }
  if (assign.counted_tokens() < 0) return Wrong("assign.counted_tokens", assign.counted_tokens(), "at least 0");
  if (!IsLossScale(assign.loss_scale())) return Wrong("assign.loss_scale", assign.loss_scale(), kLossScaleRange);
  Assignment assignment;
  assignment.loss_scale = assign.loss_scale();
  assignment.step = StepId(assign.step());
  assignment.counted_tokens = assign.counted_tokens();
  if (evaluates) assignment.evaluation_round = assign.evaluation_round();
  EPS_ASSIGN_OR_RETURN(assignment.dropped, ToDropped(assign, run));
  for (const proto::VnodeData& data : assign.vnodes()) {
    EPS_ASSIGN_OR_RETURN(VnodeBatch batch, ToVnode(data, run));
    if (!assignment.vnodes.empty() && batch.vnode <= assignment.vnodes.back().vnode) {
      return Wrong("assign.vnodes.vnode", batch.vnode, absl::StrCat("above ", assignment.vnodes.back().vnode));
    }
    assignment.vnodes.push_back(std::move(batch));
  }
  if (assign.has_group()) {
    EPS_ASSIGN_OR_RETURN(assignment.group, ToGroup(assign.group(), assignment.vnodes));
  }
  return Order(std::move(assignment));
}

absl::StatusOr<Order> ToFormGroup(absl::string_view field, FormGroupOrder order, int least_rank) {
  if (order.group == 0) return Wrong(absl::StrCat(field, ".group"), 0, "another number");
  if (order.size < 2 || order.size > kMaxGroupMembers) {
    return Wrong(absl::StrCat(field, ".size"), order.size, absl::StrCat("2 to ", kMaxGroupMembers));
  }
  if (order.rank < least_rank || order.rank >= order.size) {
    return Wrong(absl::StrCat(field, ".rank"), order.rank, absl::StrCat(least_rank, " to ", order.size - 1));
  }
  if (order.token.size() > kMaxGroupTokenBytes) {
    return Wrong(absl::StrCat(field, ".token bytes"), static_cast<int64_t>(order.token.size()),
                 absl::StrCat("at most ", kMaxGroupTokenBytes));
  }
  return Order(std::move(order));
}

absl::StatusOr<Order> ToInfer(const proto::Infer& infer, const RunConfig& run) {
  const int64_t tokens = static_cast<int64_t>(infer.tokens().size() / sizeof(int32_t));
  if (infer.tokens().size() % sizeof(int32_t) != 0 || tokens < 1 || tokens > run.model.context) {
    return Wrong("infer.tokens bytes", static_cast<int64_t>(infer.tokens().size()),
                 absl::StrCat("4 to ", run.model.context * 4, ", a multiple of 4"));
  }
  InferOrder order = {.request_id = infer.request_id(), .tokens = ToInts(infer.tokens())};
  EPS_RETURN_IF_ERROR(CheckIds("infer.tokens", order.tokens, run.model.vocab, false));
  return Order(std::move(order));
}

}  // namespace

absl::StatusOr<Attachment> ToAttachment(const proto::AttachReply& reply) {
  if (reply.worker_id() < 1) return Wrong("worker_id", reply.worker_id(), "at least 1");
  if (reply.lease_millis() < 1 || reply.lease_millis() > kMaxLeaseMillis) {
    return Wrong("lease_millis", reply.lease_millis(), absl::StrCat("1 to ", kMaxLeaseMillis));
  }
  if (reply.serving_version() < 0) return Wrong("serving_version", reply.serving_version(), "at least 0");
  if (reply.clock_nanos() < 0) return Wrong("clock_nanos", reply.clock_nanos(), "at least 0");
  Attachment attachment;
  attachment.worker_id = WorkerId(reply.worker_id());
  attachment.incarnation = reply.incarnation();
  attachment.lease = absl::Milliseconds(reply.lease_millis());
  attachment.serving = reply.serving();
  attachment.serving_version = Version(reply.serving_version());
  attachment.shared_memory_socket = reply.shared_memory_socket();
  EPS_ASSIGN_OR_RETURN(attachment.choices, ChoicesFromProto(reply.choices()));
  auto run = ParseRunConfig(reply.run_config());
  EPS_RETURN_IF_ERROR_WITH(run.status(), "run_config");
  attachment.run = *std::move(run);
  return attachment;
}

absl::StatusOr<Order> ToOrder(const proto::DaemonEvent& event, const Attachment& attachment) {
  if (event.incarnation() != attachment.incarnation) {
    return absl::UnavailableError(absl::StrCat("incarnation: ", event.incarnation(), ", attached to ",
                                               attachment.incarnation, ": the daemon was restarted"));
  }
  switch (event.event_case()) {
    case proto::DaemonEvent::kAssign:
      return ToAssignment(event.assign(), attachment.run);
    case proto::DaemonEvent::kInfer:
      return ToInfer(event.infer(), attachment.run);
    case proto::DaemonEvent::kFoundGroup:
      return ToFormGroup("found_group",
                         {.group = event.found_group().group(), .rank = 0, .size = event.found_group().size()}, 0);
    case proto::DaemonEvent::kJoinGroup:
      return ToFormGroup("join_group",
                         {.group = event.join_group().group(),
                          .rank = event.join_group().rank(),
                          .size = event.join_group().size(),
                          .token = event.join_group().token()},
                         1);
    case proto::DaemonEvent::kEndGroup:
      return Order(EndGroupOrder{.group = event.end_group().group(), .reason = event.end_group().reason()});
    case proto::DaemonEvent::kFinish:
      return Order(FinishOrder{.ok = event.finish().ok(),
                               .reason = event.finish().reason(),
                               .run_may_go_on = event.finish().run_may_go_on()});
    case proto::DaemonEvent::kChoices: {
      EPS_ASSIGN_OR_RETURN(Choices choices, ChoicesFromProto(event.choices().choices()));
      return Order(ChoicesOrder{.choices = std::move(choices)});
    }
    default:
      return absl::InvalidArgumentError("event: none that this worker knows");
  }
}

proto::PassDone ToProto(const PassReport& report) {
  proto::PassDone done;
  if (report.evaluation_round.has_value()) done.set_evaluation_round(*report.evaluation_round);
  done.set_step(report.step.value());
  for (const VnodeRecord& record : report.records) {
    proto::Record& out = *done.add_records();
    out.set_vnode(record.vnode);
    out.set_loss_sum(record.loss_sum);
    out.set_counted_tokens(record.counted_tokens);
    out.set_finite(record.finite);
    out.set_correct(record.correct);
    out.set_chosen_reward(record.chosen_reward);
    out.set_rejected_reward(record.rejected_reward);
    out.mutable_expert_rows()->Add(record.expert_rows.begin(), record.expert_rows.end());
  }
  done.set_seconds(report.seconds);
  for (const auto& [cause, seconds] : report.wait_seconds) (*done.mutable_wait_seconds())[cause] = seconds;
  done.set_device_peak_bytes(report.device_peak_bytes);
  done.set_device_outside_bytes(report.device_outside_bytes);
  return done;
}

std::chrono::nanoseconds ClockOffset(std::chrono::steady_clock::time_point asked, std::chrono::nanoseconds theirs,
                                     std::chrono::steady_clock::time_point answered) {
  // They looked at their clock somewhere between.
  const std::chrono::nanoseconds middle = asked.time_since_epoch() + (answered - asked) / 2;
  const std::chrono::nanoseconds offset = theirs - middle;
  return std::chrono::abs(offset) <= (answered - asked) / 2 ? std::chrono::nanoseconds(0) : offset;
}

}  // namespace eps::worker
