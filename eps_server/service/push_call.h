#ifndef EPS_SERVER_SERVICE_PUSH_CALL_H_
#define EPS_SERVER_SERVICE_PUSH_CALL_H_

#include "eps_server/service/data_service.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace eps::server {

// One worker's push stream: offers in, verdicts out, chunks in. It owns itself.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPushCall(const DataServiceOptions& options);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_PUSH_CALL_H_
