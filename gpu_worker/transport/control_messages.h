#ifndef EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_H_
#define EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_H_

#include <chrono>

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

// What to add to this host's steady clock to have the daemon's, which it told between our `asked` and our `answered`: good
// to half of that time; 0 where that is as good.
std::chrono::nanoseconds ClockOffset(std::chrono::steady_clock::time_point asked, std::chrono::nanoseconds theirs,
                                     std::chrono::steady_clock::time_point answered);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_CONTROL_MESSAGES_H_
