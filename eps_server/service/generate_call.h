#ifndef EPS_SERVER_SERVICE_GENERATE_CALL_H_
#define EPS_SERVER_SERVICE_GENERATE_CALL_H_

#include "eps_server/service/serving_host.h"
#include "grpcpp/support/server_callback.h"
#include "proto/control.pb.h"

namespace eps::server {

// One text: tokens go out as they are drawn. It owns itself. `serving` is null while the daemon trains, else outlives it.
grpc::ServerWriteReactor<proto::GenerateReply>* StartGenerateCall(ServingHost* serving,
                                                                  const proto::GenerateRequest& request);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_GENERATE_CALL_H_
