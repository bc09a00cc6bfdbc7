#include "eps_server/endpoint_file.h"

#include <unistd.h>

#include "common/base/file_util.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

std::string PathIn(const std::string& out, EndpointFile file) {
  return out + (file == EndpointFile::kStarting ? "/starting.json" : "/endpoints.json");
}

}  // namespace

absl::Status WriteEndpointFile(const std::string& out, EndpointFile file, const std::string& grpc_address,
                               const std::string& metrics_address) {
  nlohmann::ordered_json endpoints;
  endpoints["grpc"] = grpc_address;
  endpoints["metrics"] = metrics_address;
  endpoints["pid"] = getpid();
  return WriteFileAtomically(PathIn(out, file), endpoints.dump() + "\n");
}

absl::Status RemoveEndpointFile(const std::string& out, EndpointFile file) { return RemoveIfThere(PathIn(out, file)); }

}  // namespace eps::server
