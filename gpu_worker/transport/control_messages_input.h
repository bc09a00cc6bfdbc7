#ifndef EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_INPUT_H_
#define EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_INPUT_H_

#include <cstdint>

#include "common/spec/run_config.h"
#include "gpu_worker/transport/control.h"

namespace eps::worker {

// An input of the fuzzer of what a daemon says, testdata/control_messages_fuzz/*: a byte, and a message in protobuf.
//
//   0  DaemonEvent, to a worker of a small run: two vnodes of two sequences of four tokens
//   2  the same, of a run whose samples are of several documents
//   3  the same, of a classifier with types of tokens
//   else AttachReply
//
// Returns whose worker is spoken to; null: none's yet.
inline const Attachment* FuzzedAttachment(uint8_t first_byte) {
  static const auto make = [](uint8_t kind) {
    Attachment attachment;
    attachment.worker_id = WorkerId(1);
    attachment.incarnation = 7;
    attachment.run.model = {.num_layers = 2, .d_model = 8, .num_heads = 1, .context = 4, .vocab = 16};
    attachment.run.batch = {.virtual_nodes = 2, .micro_batches = 1, .micro_batch = 2};
    attachment.run.steps = 100;
    if (kind == 2) attachment.run.data.documents = DocumentMode::kPacked;
    if (kind == 3) {
      attachment.run.model.family = ModelFamily::kBert;
      attachment.run.model.num_types = 2;
      attachment.run.model.num_classes = 3;
    }
    return attachment;
  };
  static const Attachment plain = make(0), documents = make(2), classifier = make(3);
  switch (first_byte) {
    case 0:
      return &plain;
    case 2:
      return &documents;
    case 3:
      return &classifier;
    default:
      return nullptr;
  }
}

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_INPUT_H_
