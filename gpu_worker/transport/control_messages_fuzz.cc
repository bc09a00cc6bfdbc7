#include "gpu_worker/transport/control_messages.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <variant>

#include "common/choices/choices.h"
#include "common/spec/run_config.h"
#include "google/protobuf/stubs/logging.h"
#include "proto/control.pb.h"

namespace eps::worker {
namespace {

// A worker of a small run: two vnodes of two sequences of four tokens.
Attachment SmallAttachment() {
  Attachment attachment;
  attachment.worker_id = WorkerId(1);
  attachment.incarnation = 7;
  attachment.run.model = {.num_layers = 1, .d_model = 8, .num_heads = 1, .context = 4, .vocab = 16};
  attachment.run.batch = {.virtual_nodes = 2, .micro_batches = 1, .micro_batch = 2};
  attachment.run.steps = 100;
  return attachment;
}

// What a relay trusts without looking again.
void CheckAssignment(const Assignment& assignment, const RunConfig& run) {
  if (assignment.step.value() < 0 || assignment.step.value() >= run.steps) abort();
  int last = -1;
  for (const VnodeBatch& batch : assignment.vnodes) {
    if (batch.vnode <= last || batch.vnode >= run.batch.virtual_nodes) abort();
    last = batch.vnode;
    const auto tokens = static_cast<size_t>(run.batch.sequences_per_vnode() * run.model.context);
    if (batch.tokens.size() != tokens || batch.labels.size() != tokens) abort();
    for (const int32_t id : batch.tokens) {
      if (id < 0 || id >= run.model.vocab) abort();
    }
    for (const int32_t id : batch.labels) {
      if (id != -100 && (id < 0 || id >= run.model.vocab)) abort();
    }
  }
}

void CheckChoices(const Choices& choices) {
  if (choices.size() > kMaxChoices) abort();
  for (const auto& [key, value] : choices) {
    if (key.empty() || key.size() > kMaxChoiceKeyBytes || value.empty() || value.size() > kMaxChoiceValueBytes) abort();
  }
}

}  // namespace
}  // namespace eps::worker

// A DaemonEvent after a byte 0, an AttachReply after any other: what a worker is told by whoever listens at the address.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  using namespace eps::worker;
  // It says on stderr, each time, that a string is no UTF-8.
  static google::protobuf::LogHandler* const loud = google::protobuf::SetLogHandler(nullptr);
  (void)loud;
  if (num_bytes == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, num_bytes - 1);
  if (data[0] != 0) {
    eps::proto::AttachReply reply;
    if (!reply.ParseFromString(bytes)) return 0;
    if (const auto attachment = ToAttachment(reply); attachment.ok()) CheckChoices(attachment->choices);
    return 0;
  }
  static const Attachment attachment = SmallAttachment();
  eps::proto::DaemonEvent event;
  if (!event.ParseFromString(bytes)) return 0;
  event.set_incarnation(attachment.incarnation);  // else hardly one would come past it
  const absl::StatusOr<Order> order = ToOrder(event, attachment);
  if (!order.ok()) return 0;
  if (const auto* assignment = std::get_if<eps::Assignment>(&*order)) CheckAssignment(*assignment, attachment.run);
  if (const auto* choices = std::get_if<ChoicesOrder>(&*order)) CheckChoices(choices->choices);
  if (const auto* infer = std::get_if<InferOrder>(&*order)) {
    if (infer->tokens.empty() || static_cast<int64_t>(infer->tokens.size()) > attachment.run.model.context) abort();
  }
  return 0;
}
