#ifndef EPS_COMMON_FORMATS_NEW_FOLDER_H_
#define EPS_COMMON_FORMATS_NEW_FOLDER_H_

#include <functional>
#include <string>

#include "absl/status/status.h"

namespace eps {

// Errors: ALREADY_EXISTS the folder is there and not empty
absl::Status CheckNewFolder(const std::string& folder);

// Writes a folder that must not be there, or be empty. `write` fills the one that it is given, FOLDER.tmp.PID, which is
// then renamed: nothing half-done has the name, and what a process that is killed leaves aside the next one removes.
// Errors: CheckNewFolder's · the system's, naming the file · those of `write`
absl::Status WriteNewFolder(const std::string& folder, const std::function<absl::Status(const std::string&)>& write);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_NEW_FOLDER_H_
