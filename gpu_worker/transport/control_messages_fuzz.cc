#include "gpu_worker/transport/control_messages.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <variant>
#include <vector>

#include "common/choices/choices.h"
#include "common/schedule/group_limits.h"
#include "common/schedule/loss_scale.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "google/protobuf/stubs/logging.h"
#include "gpu_worker/transport/control.h"
#include "gpu_worker/transport/control_messages_input.h"
#include "proto/control.pb.h"

namespace eps::worker {
namespace {

void Require(bool holds) {
  if (!holds) abort();
}

void CheckIds(const std::vector<int32_t>& ids, int64_t num_ids, int64_t vocab, bool may_skip) {
  Require(static_cast<int64_t>(ids.size()) == num_ids);
  for (const int32_t id : ids) Require((id >= 0 && id < vocab) || (may_skip && id == kNotCounted));
}

void CheckBatch(const VnodeBatch& batch, const RunConfig& run) {
  const int64_t sequences = run.batch.sequences_per_vnode();
  const int64_t tokens = sequences * run.model.context;
  CheckIds(batch.tokens, tokens, run.model.vocab, false);
  CheckIds(batch.labels, sequences * run.model.labels_per_sample(), run.model.num_outputs(), true);
  CheckIds(batch.types, batch.types.empty() ? 0 : tokens, run.model.num_types, false);
  Require(static_cast<int64_t>(batch.document_first.size()) == (run.data.has_documents() ? tokens : 0));
  Require(DocumentEnds(batch.document_first, run.model.context).ok());
}

void CheckGroup(const GroupVnodes& group, const std::vector<VnodeBatch>& own) {
  Require(group.group != 0 && group.size() >= 2 && group.size() <= kMaxGroupMembers);
  Require(group.rank >= 0 && group.rank < group.size());
  std::vector<int> vnodes;
  for (const VnodeBatch& batch : own) vnodes.push_back(batch.vnode);
  Require(group.vnodes[static_cast<size_t>(group.rank)] == vnodes);
}

// What a relay trusts without looking again.
void CheckAssignment(const Assignment& assignment, const RunConfig& run) {
  const bool evaluates = assignment.evaluation_round.has_value();
  if (evaluates)
    Require(*assignment.evaluation_round >= 0 && !assignment.group.has_value() && assignment.dropped.empty());
  Require(assignment.step.value() >= 0 && assignment.step.value() < run.steps + (evaluates ? 1 : 0));
  Require(assignment.counted_tokens >= 0 && IsLossScale(assignment.loss_scale));
  int last = -1;
  for (const VnodeBatch& batch : assignment.vnodes) {
    Require(batch.vnode > last && batch.vnode < run.batch.virtual_nodes);
    last = batch.vnode;
    CheckBatch(batch, run);
  }
  int32_t last_dropped = 0;
  for (const LayerId layer : assignment.dropped) {
    Require(layer.value() > last_dropped && layer.value() <= run.model.num_layers);
    last_dropped = layer.value();
  }
  if (assignment.group.has_value()) CheckGroup(*assignment.group, assignment.vnodes);
}

void CheckFormGroup(const FormGroupOrder& order) {
  Require(order.group != 0 && order.size >= 2 && order.size <= kMaxGroupMembers);
  Require(order.rank >= 0 && order.rank < order.size);
  Require(order.token.size() <= (order.rank == 0 ? 0 : kMaxGroupTokenBytes));
}

void CheckChoices(const Choices& choices) {
  Require(choices.size() <= kMaxChoices);
  for (const auto& [key, value] : choices) {
    Require(!key.empty() && key.size() <= kMaxChoiceKeyBytes && !value.empty() && value.size() <= kMaxChoiceValueBytes);
  }
}

void CheckOrder(const Order& order, const RunConfig& run) {
  if (const auto* assignment = std::get_if<Assignment>(&order)) CheckAssignment(*assignment, run);
  if (const auto* form = std::get_if<FormGroupOrder>(&order)) CheckFormGroup(*form);
  if (const auto* choices = std::get_if<ChoicesOrder>(&order)) CheckChoices(choices->choices);
  if (const auto* infer = std::get_if<InferOrder>(&order)) {
    Require(!infer->tokens.empty() && static_cast<int64_t>(infer->tokens.size()) <= run.model.context);
    CheckIds(infer->tokens, static_cast<int64_t>(infer->tokens.size()), run.model.vocab, false);
  }
}

}  // namespace
}  // namespace eps::worker

// What a worker is told by whoever listens at the address (control_messages_input.h).
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace eps::worker;
  // It says on stderr, each time, that a string is no UTF-8.
  static google::protobuf::LogHandler* const loud = google::protobuf::SetLogHandler(nullptr);
  (void)loud;
  if (num_bytes == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, num_bytes - 1);
  const Attachment* attachment = FuzzedAttachment(data[0]);
  if (attachment == nullptr) {
    eps::proto::AttachReply reply;
    if (!reply.ParseFromString(bytes)) return 0;
    if (const auto attached = ToAttachment(reply); attached.ok()) CheckChoices(attached->choices);
    return 0;
  }
  eps::proto::DaemonEvent event;
  if (!event.ParseFromString(bytes)) return 0;
  event.set_incarnation(attachment->incarnation);  // else hardly one would come past it
  const absl::StatusOr<Order> order = ToOrder(event, *attachment);
  if (order.ok()) CheckOrder(*order, attachment->run);
  return 0;
}
