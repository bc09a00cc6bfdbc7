#ifndef EPS_SERVER_ENDPOINT_FILE_H_
#define EPS_SERVER_ENDPOINT_FILE_H_

#include <string>

#include "absl/status/status.h"

namespace eps::server {

enum class EndpointFile {
  kStarting,  // OUT/starting.json, of a daemon that loads its model
  kRunning,   // OUT/endpoints.json
};

// Where this daemon listens, and which process it is, so that a file that a dead one left is known for what it is.
// Errors: the system's, naming the file
absl::Status WriteEndpointFile(const std::string& out, EndpointFile file, const std::string& grpc_address,
                               const std::string& metrics_address);
absl::Status RemoveEndpointFile(const std::string& out, EndpointFile file);

}  // namespace eps::server

#endif  // EPS_SERVER_ENDPOINT_FILE_H_
