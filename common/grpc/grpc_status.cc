#include "common/grpc/grpc_status.h"

#include <string>

#include "absl/strings/string_view.h"

namespace eps {
namespace {

// A status message travels as trailing metadata, of which gRPC takes 8 KiB by default.
constexpr size_t kMaxMessageBytes = 4096;

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const absl::string_view message = status.message().substr(0, kMaxMessageBytes);
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(message.data(), message.size()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

}  // namespace eps
