#ifndef EPS_SERVER_SERVICE_SHARED_MEMORY_SERVER_H_
#define EPS_SERVER_SERVICE_SHARED_MEMORY_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/service/traffic.h"
#include "eps_server/store/store.h"

namespace eps::server {

struct SharedMemoryOptions {
  uint64_t incarnation = 0;             // of this process
  const ModelSpec* model = nullptr;     // these outlive the server
  Store* store = nullptr;               // has a wire segment
  Aggregator* aggregator = nullptr;     // null: nothing is trained, and an offer is refused
  Version last_version;                 // of the run: no later one will ever be made
  int64_t max_inbox_bytes = 0;          // that a worker may ask for: MaxInboxBytes
  int copiers = 1;                      // threads of each connection that take gradients out of its inbox; at least 1
  TransportTraffic* traffic = nullptr;  // null: not counted
};

// What the inbox of a worker of this run may have at most: every vnode's gradient of a whole step in fp32, and the slots
// for staging. Pages are taken when they are first written, and hold what would otherwise lie in the worker's own memory.
int64_t MaxInboxBytes(const ModelSpec& model, const RunConfig& run);

// The data plane for workers of this host (docs/formats.md, shared memory): weights are read in place in the store's own
// wire segment, gradients are taken from an inbox that each worker has. On the socket go only messages of 64 bytes.
//
// A worker's weights of step s are valid while step s can still use them: as with gRPC, the gate sees to it. A worker so
// late that it reads a later version was lost before, and what it makes of it is not wanted any more.
//
// Threads: one that accepts, and for each connection one for messages and `copiers` that take gradients, so that a pull
//          never waits behind a copy. A peer that is slow, dead or hostile holds up its own connection and nothing else.
class SharedMemoryServer {
 public:
  // Errors: UNIMPLEMENTED the store's memory cannot be shared · LocalListener's
  static absl::StatusOr<std::unique_ptr<SharedMemoryServer>> Start(SharedMemoryOptions options);
  // Ends every connection, and waits until none is served. What the optimizer was lent of an inbox stays until it is given
  // back.
  virtual ~SharedMemoryServer() = default;

  // Where workers connect.
  virtual const std::string& path() const = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_SHARED_MEMORY_SERVER_H_
