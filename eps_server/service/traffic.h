#ifndef EPS_SERVER_SERVICE_TRAFFIC_H_
#define EPS_SERVER_SERVICE_TRAFFIC_H_

#include <atomic>
#include <cstdint>

namespace eps::server {

// Payload bytes of the data plane since the daemon started, by transport: weights that workers took, gradients that
// they sent, whether counted or not. Atomic, because every call adds to them from a thread of its own.
struct TransportTraffic {
  std::atomic<int64_t> pulled_bytes = 0;
  std::atomic<int64_t> pushed_bytes = 0;
  // Of shared memory: the inboxes of workers that are connected, whose pages this process maps as it reads them.
  std::atomic<int64_t> inbox_bytes = 0;
};
struct Traffic {
  TransportTraffic grpc;
  TransportTraffic shared_memory;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_TRAFFIC_H_
