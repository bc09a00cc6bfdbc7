#ifndef EPS_COMMON_CHECKPOINT_FROZEN_FILE_H_
#define EPS_COMMON_CHECKPOINT_FROZEN_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"

namespace eps {

// The kFrozenFile of a checkpoint. What is frozen is the same in all checkpoints of a run: the file is written once, and
// each later checkpoint has it as a link to the same bytes on disk, as long as it is known to be what was written.
// Nothing ever writes into it again. docs/decisions/0022-frozen-tensors-are-written-once.md.
class FrozenFile {
 public:
  // That of the checkpoint in `folder`, whose bytes are found to be as `sum` says, or are about to be: from now on the
  // file must not change. Errors: the system's
  static absl::StatusOr<FrozenFile> Of(const std::string& folder, FileSum sum);

  const FileSum& sum() const { return sum_; }
  // Makes it a file of the checkpoint in `folder` too, which has none. False: it is gone, another one or touched by now, or
  // cannot be linked there (another file system, one without links, too many of them), and `folder` has nothing of it.
  // Errors: the system's
  absl::StatusOr<bool> LinkInto(const std::string& folder) const;

 private:
  // By which the same bytes are known again without reading them.
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t num_bytes = 0, modified_seconds = 0, modified_nanoseconds = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  static absl::StatusOr<Identity> IdentityOf(const std::string& path);

  FrozenFile(std::string path, FileSum sum, const Identity& identity)
      : path_(std::move(path)), sum_(std::move(sum)), identity_(identity) {}

  std::string path_;
  FileSum sum_;
  Identity identity_;
};

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_FROZEN_FILE_H_
