#ifndef EPS_SERVER_SERVICE_STATUS_REPLY_H_
#define EPS_SERVER_SERVICE_STATUS_REPLY_H_

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "common/base/long_work.h"
#include "common/grpc/keys_state.h"
#include "eps_server/step/run_status.h"
#include "proto/control.pb.h"

namespace eps::server {

// Everything but the incarnation, the run's name, keys and orders.
void FillStatus(const RunStatus& status, proto::StatusReply& reply);
// The same of a daemon that is starting, and at `work`.
void FillStart(const LongWork::View& work, proto::StatusReply& reply);
// What there is to say of the doors' keys.
void FillKeys(const KeysState& keys, absl::Time now, proto::StatusReply& reply);

// ".../step-00000120" -> 120.
int64_t CheckpointStep(const std::string& path);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_STATUS_REPLY_H_
