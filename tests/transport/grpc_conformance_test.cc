#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/service/data_service.h"
#include "eps_server/service/rpc_server.h"
#include "gpu_worker/transport/grpc_channel.h"
#include "gpu_worker/transport/grpc_transport.h"
#include "gpu_worker/transport/transport.h"
#include "gpu_worker/transport/transport_conformance.h"
#include "tests/transport/data_plane_daemon.h"
#include "tests/transport/slow_link.h"
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

  std::unique_ptr<worker::Transport> NewTransport() override { return NewTransport(address()); }

  const std::string& address() const { return server_->address(); }
  // A worker that reaches it there.
  std::unique_ptr<worker::Transport> NewTransport(const std::string& address) {
    return worker::NewGrpcTransport({.channels = {worker::NewDataChannel(address), worker::NewDataChannel(address)},
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

// Of both connections, whose parts have a chunk or two.
class SlowLinkTest : public TransportConformanceTest {};
INSTANTIATE_TEST_SUITE_P(Grpc, SlowLinkTest, testing::Values(TransportCase{"grpc", [](TransportTestOptions options) {
                                                                             return std::make_unique<GrpcDaemon>(
                                                                                 options, 0);
                                                                           }}));

TEST_P(SlowLinkTest, ATransferIsNotAWaitForTheVersion) {
  StartDaemon(Dtype::kBf16);
  auto& daemon = static_cast<GrpcDaemon&>(*daemon_);
  SlowLink link(daemon.address(), 4'000'000);
  const auto transport = daemon.NewTransport(link.address());
  const BlobId wte(0);
  daemon_->Publish(wte, Version(0), Master(wte, 0));
  PullTiming timing;
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_THAT(PullPart(*transport, wte, Version(0), model_.blob(wte).all_chunks(), &timing),
              IsOkAndHolds(ToWire(Master(wte, 0), dtype_)));
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  EXPECT_GT(took.count(), 0.1);  // two chunks of 512 KiB on one of the connections take a quarter of a second
  EXPECT_LT(timing.version_wait_seconds, took.count() / 10);
}

}  // namespace worker
}  // namespace eps
