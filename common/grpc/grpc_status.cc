#include "common/grpc/grpc_status.h"

#include <string>

#include "absl/strings/string_view.h"

namespace eps {
namespace {

// A status message travels as trailing metadata, of which gRPC takes 8 KiB by default, percent-encoded: what is not
// printable ASCII takes three bytes for one.
constexpr size_t kMaxEncodedBytes = 4096;

// The part of `message` that so many bytes hold.
absl::string_view Fitting(absl::string_view message) {
  size_t encoded = 0, num_bytes = 0;
  for (const char c : message) {
    encoded += c >= ' ' && c <= '~' && c != '%' ? 1 : 3;
    if (encoded > kMaxEncodedBytes) break;
    ++num_bytes;
  }
  return message.substr(0, num_bytes);
}

}  // namespace

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(Fitting(status.message())));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  const auto code = static_cast<absl::StatusCode>(status.error_code());
  if (status.error_message().empty()) return absl::Status(code, absl::StatusCodeToString(code));
  return absl::Status(code, status.error_message());
}

}  // namespace eps
