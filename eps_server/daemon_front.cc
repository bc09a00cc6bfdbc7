#include "eps_server/daemon_front.h"

#include <unistd.h>

#include <utility>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/run_folder/endpoint_file.h"
#include "eps_server/service/starting_service.h"
#include "eps_server/service/status_json.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<DaemonFront>> DaemonFront::Open(const DaemonOptions& options,
                                                               const ListenAddress& listen, RpcServerOptions rpc,
                                                               const DaemonIdentity& identity, const LongWork* work) {
  std::unique_ptr<DaemonFront> front(new DaemonFront(options.out));
  EPS_ASSIGN_OR_RETURN(
      front->page_,
      DaemonPage::Start({.listen = options.metrics_listen,
                         .any_address = options.metrics_any_address,
                         .status_json = [identity](const DaemonView& view) { return StatusJson(identity, view); }}));
  front->page_->Show([work] { return DaemonView{.start_work = work->Look()}; });
  rpc.is_serving = false;
  EPS_ASSIGN_OR_RETURN(front->server_, RpcServer::Start(listen, NewStartingServices(identity, work),
                                                        /*max_message_bytes=*/0, std::move(rpc)));
  front->is_starting_ = true;
  EPS_RETURN_IF_ERROR(WriteEndpointFile(options.out, EndpointFile::kStarting, front->endpoint()));
  LogInfo("daemon_starts", {{"grpc", front->server_->address()}, {"metrics", front->page_->address()}});
  return front;
}

Endpoint DaemonFront::endpoint() const {
  return {.address = server_->LocalAddress(), .page = page_->address(), .process_id = getpid()};
}

DaemonFront::~DaemonFront() {
  // Who does not find it looks no further, and nothing can be done about an error here.
  if (is_starting_) RemoveEndpointFile(out_, EndpointFile::kStarting).IgnoreError();
}

absl::Status DaemonFront::GoOn(std::vector<std::unique_ptr<grpc::Service>> services, int max_message_bytes) {
  EPS_RETURN_IF_ERROR(server_->Replace(std::move(services), max_message_bytes));
  EPS_RETURN_IF_ERROR(WriteEndpointFile(out_, EndpointFile::kRunning, endpoint()));
  EPS_RETURN_IF_ERROR(RemoveEndpointFile(out_, EndpointFile::kStarting));
  is_starting_ = false;
  return absl::OkStatus();
}

}  // namespace eps::server
