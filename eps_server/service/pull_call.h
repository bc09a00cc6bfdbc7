#ifndef EPS_SERVER_SERVICE_PULL_CALL_H_
#define EPS_SERVER_SERVICE_PULL_CALL_H_

#include "eps_server/service/data_service.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace eps::server {

// A stream of pulls, one after another: reads a request, waits for its version without a thread, writes chunk after
// chunk, and reads the next. It owns itself.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPullCall(const DataServiceOptions& options);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_PULL_CALL_H_
