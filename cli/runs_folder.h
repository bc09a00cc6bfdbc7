#ifndef EPS_CLI_RUNS_FOLDER_H_
#define EPS_CLI_RUNS_FOLDER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace eps::cli {

// Where runs lie that a command makes for itself: a temporary folder, which goes again unless it is kept; or the user's,
// which stays.
class RunsFolder {
 public:
  // given: the user's; "": a temporary one, whose name begins with `name`. What --out says is `given`.
  // Errors: ALREADY_EXISTS `given` holds something · the system's
  static absl::StatusOr<std::unique_ptr<RunsFolder>> Make(const std::string& given, const std::string& name);
  ~RunsFolder();
  RunsFolder(const RunsFolder&) = delete;
  RunsFolder& operator=(const RunsFolder&) = delete;

  void Keep() { keep_ = true; }
  bool kept() const { return keep_; }
  const std::string& path() const { return path_; }

 private:
  RunsFolder() = default;

  std::string path_;
  bool keep_ = false;
};

}  // namespace eps::cli

#endif  // EPS_CLI_RUNS_FOLDER_H_
