#ifndef EPS_SERVER_SERVICE_DATA_SERVICE_H_
#define EPS_SERVER_SERVICE_DATA_SERVICE_H_

#include <cstdint>
#include <memory>

#include "common/base/ids.h"
#include "common/base/monotonic_clock.h"
#include "common/model/model_spec.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/service/traffic.h"
#include "eps_server/store/store.h"
#include "grpcpp/impl/service_type.h"

namespace eps::server {

struct DataServiceOptions {
  uint64_t incarnation = 0;          // of this process
  const ModelSpec* model = nullptr;  // these outlive the server that the service is registered with, and all answers
  Store* store = nullptr;
  Aggregator* aggregator = nullptr;      // null: nothing is trained, and a push is refused
  Version last_version;                  // of the run: no later one will ever be made
  TransportTraffic* traffic = nullptr;   // null: not counted
  MonotonicClock clock = SteadyClock();  // how long pulls wait for their versions
};

// The data plane (proto/data_plane.proto), raw: weights go out as slices of the store's own wire buffers, gradients
// are read where gRPC put them. gRPC's callback API: no thread waits for a version, a window or a peer.
//
// A pulled slice points into the buffer of version s while it is being written to the socket. The gate keeps it: s + 2
// is not made before every contribution of step s is in. A worker so late that its bytes are overwritten was lost
// before, and what it makes of them is not wanted any more.
std::unique_ptr<grpc::Service> NewDataService(DataServiceOptions options);

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_DATA_SERVICE_H_
