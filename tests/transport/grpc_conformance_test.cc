#include <memory>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_transport.h"
#include "gpu_worker/transport/transport_conformance.h"
#include "tests/transport/data_plane_daemon.h"
#include "tests/transport/small_window_conformance.h"

namespace eps {
namespace {

// Behind a real gRPC server.
class GrpcDaemon final : public DataPlaneDaemon {
 public:
  GrpcDaemon(worker::TransportTestOptions options, int64_t window_bytes) : DataPlaneDaemon(options, window_bytes) {
    std::vector<std::unique_ptr<grpc::Service>> services;
    services.push_back(server::NewDataService({.incarnation = kIncarnation,
                                               .model = &model_,
                                               .store = store_.get(),
                                               .aggregator = aggregator_.get(),
                                               .last_version = Version(100)}));
    server_ = server::RpcServer::Start({.host = "127.0.0.1", .port = 0}, std::move(services), 0).value();
  }
  ~GrpcDaemon() override { Stop(); }

  std::unique_ptr<worker::Transport> NewTransport() override {
    return worker::NewGrpcTransport(
        {.channels = {worker::NewDataChannel(server_->address()), worker::NewDataChannel(server_->address())},
         .incarnation = kIncarnation,
         .worker_id = WorkerId(1),
         .model = &model_,
         .wire_dtype = run_.precision.wire});
  }

 private:
  std::unique_ptr<server::RpcServer> server_;
};

}  // namespace

namespace worker {

INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformanceTest,
                         testing::Values(TransportCase{"grpc", [](TransportTestOptions options) {
                                                         return std::make_unique<GrpcDaemon>(options, 0);
                                                       }}));

INSTANTIATE_TEST_SUITE_P(Grpc, SmallWindowTest,
                         testing::Values(TransportCase{"grpc_small_window", [](TransportTestOptions options) {
                                                         return std::make_unique<GrpcDaemon>(options, kChunkElems * 4);
                                                       }}));

}  // namespace worker
}  // namespace eps
