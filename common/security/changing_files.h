#ifndef EPS_COMMON_SECURITY_CHANGING_FILES_H_
#define EPS_COMMON_SECURITY_CHANGING_FILES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/security/file_stamps.h"

namespace eps {

// Files that are read together, and read again once they are others than before: when that is, and whether what is
// wrong with them then is still to be said.
//
// Threads: one
class ChangingFiles {
 public:
  // Of what is read after this was made. Empty names stand for no file.
  explicit ChangingFiles(std::vector<std::string> files) : stamps_(std::move(files)) {}

  // Whether they are to be read: since Take they have changed. Settled: and are the same as at the last look, so that
  // nobody is writing them.
  bool HaveChanged() { return Look() || is_to_read_; }
  // Those that are written again and again are said to have after a few looks.
  bool HaveSettled();

  // What was read is good.
  void Take();
  // It is not. Whether the reason is another than that of the last refusal since Take, and so to be logged.
  bool Refuse(const absl::Status& why);
  // The reason of the last refusal since Take; "": there is none.
  const std::string& refusal() const { return refusal_; }

 private:
  // Whether they are others than at the last look.
  bool Look();

  FileStamps stamps_;
  bool is_to_read_ = false;
  int restless_looks_ = 0;  // one after the other
  std::string refusal_;
};

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_CHANGING_FILES_H_
