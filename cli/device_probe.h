#ifndef EPS_CLI_DEVICE_PROBE_H_
#define EPS_CLI_DEVICE_PROBE_H_

#include <string>

#include "absl/status/status.h"

namespace eps::cli {

// Whether a worker can start the device, with these --vectors. Devices are the worker's matter: the one beside this
// program is asked.
// Errors: INVALID_ARGUMENT it cannot, in the worker's words · the system's, when there is no worker to ask
absl::Status ProbeDevice(const std::string& device, const std::string& vectors);

}  // namespace eps::cli

#endif  // EPS_CLI_DEVICE_PROBE_H_
