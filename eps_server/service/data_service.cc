#include "eps_server/service/data_service.h"

#include <utility>

#include "eps_server/service/pull_call.h"
#include "eps_server/service/push_call.h"
#include "proto/data_plane.grpc.pb.h"

namespace eps::server {
namespace {

class DataService final : public proto::DataPlane::WithRawCallbackMethod_Pull<
                              proto::DataPlane::WithRawCallbackMethod_Push<proto::DataPlane::Service>> {
 public:
  explicit DataService(DataServiceOptions options) : options_(std::move(options)) {}

  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Pull(grpc::CallbackServerContext*) override {
    return StartPullCall(options_);
  }
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Push(grpc::CallbackServerContext*) override {
    return StartPushCall(options_);
  }

 private:
  const DataServiceOptions options_;
};

}  // namespace

std::unique_ptr<grpc::Service> NewDataService(DataServiceOptions options) {
  return std::make_unique<DataService>(std::move(options));
}

}  // namespace eps::server
