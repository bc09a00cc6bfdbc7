#ifndef EPS_SERVER_OUT_FOLDER_H_
#define EPS_SERVER_OUT_FOLDER_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/base/new_folder.h"

namespace eps::server {

// OUT, into which one daemon at a time writes. One that was not there goes again with this, unless Keep was called.
//
// Threads: any, one at a time
class OutFolder {
 public:
  explicit OutFolder(std::string path) : path_(std::move(path)) {}

  // Takes it, if it is there. Errors: INVALID_ARGUMENT not a folder · FAILED_PRECONDITION another process has it
  absl::Status Claim();
  // Makes it, if it is not there, and takes it. Errors: Claim's · the system's
  absl::Status Make();
  void Keep() { made_.Keep(); }
  // Whether the folder of that path is still this one. Where it was moved away, or is gone, one is made in its place, and
  // taken. Errors: FAILED_PRECONDITION another process has that one · the system's
  absl::Status Reclaim();

 private:
  const std::string path_;
  FileDescriptor lock_;
  NewFolder made_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_OUT_FOLDER_H_
