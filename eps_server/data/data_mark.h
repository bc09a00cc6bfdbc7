#ifndef EPS_SERVER_DATA_DATA_MARK_H_
#define EPS_SERVER_DATA_DATA_MARK_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/run_state.h"

namespace eps::server {

// The sum is over 64 KiB at the file's start, at its end, and at 62 places evenly between, rounded down to 4 KiB; over all
// of it where it is no longer than that. What is replaced, cut or added to is seen; a few bytes changed in a large file
// may not be: whoever writes into data in place is asking for it, and reading terabytes at each start is not.
// Errors: the system's, naming the file
absl::StatusOr<DataMark> MarkDataFile(const std::string& path);

// Of several files in their order: the sum of their sizes, and the sum over their sums. Of one: its own mark.
absl::StatusOr<DataMark> MarkDataFiles(const std::vector<std::string>& paths);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_DATA_MARK_H_
