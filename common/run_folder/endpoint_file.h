#ifndef EPS_COMMON_RUN_FOLDER_ENDPOINT_FILE_H_
#define EPS_COMMON_RUN_FOLDER_ENDPOINT_FILE_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Where the daemon of a run's folder is reached: it writes, commands read. docs/formats.md, endpoints.json.
namespace eps {

struct Endpoint {
  std::string address;  // HOST:PORT, gRPC
  std::string page;     // HOST:PORT of the HTTP page; "": not told
  // So that a file that a dead daemon left is known for what it is.
  int64_t process_id = 0;
};

enum class EndpointFile {
  kStarting,  // OUT/starting.json, of a daemon that loads its model: GetStatus is answered alone
  kRunning,   // OUT/endpoints.json, once workers may attach
};

// Errors: the system's, naming the file
absl::Status WriteEndpointFile(const std::string& out, EndpointFile file, const Endpoint& endpoint);
absl::Status RemoveEndpointFile(const std::string& out, EndpointFile file);
// Errors: NOT_FOUND no such file · INVALID_ARGUMENT naming the file and field · the system's
absl::StatusOr<Endpoint> ReadEndpointFile(const std::string& out, EndpointFile file);

}  // namespace eps

#endif  // EPS_COMMON_RUN_FOLDER_ENDPOINT_FILE_H_
