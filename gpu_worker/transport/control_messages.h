#ifndef EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_H_
#define EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_H_

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"
#include "gpu_worker/transport/control.h"
#include "proto/control.pb.h"

namespace eps::worker {

// What the daemon sent, checked against the run: every later user may trust sizes, vnodes, tokens and labels.
//
// Errors: INVALID_ARGUMENT naming the field, the value found and the value wanted
absl::StatusOr<Attachment> ToAttachment(const proto::AttachReply& reply);
absl::StatusOr<Order> ToOrder(const proto::DaemonEvent& event, const Attachment& attachment);

proto::PassDone ToProto(const PassReport& report);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_H_
