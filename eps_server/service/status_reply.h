#ifndef EPS_SERVER_SERVICE_STATUS_REPLY_H_
#define EPS_SERVER_SERVICE_STATUS_REPLY_H_

#include <cstdint>
#include <string>

#include "eps_server/step/run_status.h"
#include "proto/control.pb.h"

namespace eps::server {

// Everything but the incarnation.
void FillStatus(const RunStatus& status, proto::StatusReply& reply);

// ".../step-00000120" -> 120.
int64_t CheckpointStep(const std::string& path);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_STATUS_REPLY_H_
