#ifndef EPS_SERVER_SERVICE_PULL_CALL_H_
#define EPS_SERVER_SERVICE_PULL_CALL_H_

#include "eps_server/service/data_service.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"

namespace eps::server {

// One pull: waits for the version without a thread, then writes chunk after chunk. It owns itself.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartPullCall(const DataServiceOptions& options,
                                                          const grpc::ByteBuffer& request);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_PULL_CALL_H_
