#ifndef EPS_CLI_CHECKPOINT_PATH_H_
#define EPS_CLI_CHECKPOINT_PATH_H_

#include <string>

namespace eps::cli {

// Where a checkpoint lies that a daemon calls `path`, for who calls the run's folder `out`: the daemon's own paths are
// relative to where it was started. As it is where it does not lie in `out`, as of a daemon that serves it, where nobody
// says which folder that is, `out` being "", and where `path` is "", as there is no checkpoint.
std::string CheckpointPath(const std::string& out, const std::string& path);

}  // namespace eps::cli

#endif  // EPS_CLI_CHECKPOINT_PATH_H_
