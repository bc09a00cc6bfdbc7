#ifndef EPS_SERVER_SERVICE_EVENT_STREAM_H_
#define EPS_SERVER_SERVICE_EVENT_STREAM_H_

#include <cstdint>

#include "eps_server/service/worker_host.h"
#include "grpcpp/support/server_callback.h"
#include "proto/control.pb.h"

namespace eps::server {

// One worker's event stream, from its first heartbeat to its end. It owns itself; `host` outlives it.
grpc::ServerBidiReactor<proto::WorkerEvent, proto::DaemonEvent>* StartEventStream(WorkerHost& host,
                                                                                  uint64_t incarnation);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_EVENT_STREAM_H_
