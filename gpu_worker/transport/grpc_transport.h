#ifndef EPS_GPU_WORKER_TRANSPORT_GRPC_TRANSPORT_H_
#define EPS_GPU_WORKER_TRANSPORT_GRPC_TRANSPORT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/transport.h"
#include "grpcpp/channel.h"

namespace eps::worker {

struct GrpcTransportOptions {
  // NewDataChannel, one or two: a pull of several chunks is cut into as many parts, which travel side by side. Pushes
  // go over the first.
  std::vector<std::shared_ptr<grpc::Channel>> channels;
  uint64_t incarnation = 0;  // of the daemon; from Attach, as is worker_id
  WorkerId worker_id;
  const ModelSpec* model = nullptr;  // outlives the transport
  Dtype wire_dtype = Dtype::kBf16;
  // Called when it fails by itself, perhaps while nobody waits for it: with the first error, from any thread, once.
  std::function<void(absl::Status)> on_failure = nullptr;
};

// The data plane over gRPC (proto/data_plane.proto), with raw messages: a pulled chunk is copied once, from
// gRPC's slices to its destination, while the next one is being read; a pushed chunk is sent from the
// contribution's own memory, or packed where much of it is zero (common/formats/sparse_chunk.h).
//
// Streams are opened at their first use, and stay: one for pulls on each connection, one for pushes on the first. Offers
// go out at once, the chunks of what the daemon admits follow in the order of admission.
std::unique_ptr<Transport> NewGrpcTransport(GrpcTransportOptions options);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_GRPC_TRANSPORT_H_
