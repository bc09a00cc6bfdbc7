#ifndef EPS_COMMON_CHECKPOINT_FROZEN_FILE_H_
#define EPS_COMMON_CHECKPOINT_FROZEN_FILE_H_

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/checkpoint/manifest.h"

namespace eps {

// The kFrozenFile of a checkpoint. What is frozen is the same in all checkpoints of a run: the file is written once,
// and each later checkpoint has it as a link to the same bytes on disk, as long as it is known to be what was written.
// Nothing ever writes into it again. docs/decisions/0022-frozen-tensors-are-written-once.md.
//
// Threads: safe
class FrozenFile {
 public:
  // The one of the checkpoint in `folder`, synced. To be called before the file is read for its sum: a change after
  // this call is seen by LinkInto, one before it is not.
  // Errors: FAILED_PRECONDITION it is no regular file, or another user's, who could write into it · the system's
  static absl::StatusOr<FrozenFile> Of(const std::string& folder);
  // The same file, by the name that it has in `folder`: where a folder was renamed to, or what it was linked into.
  FrozenFile In(const std::string& folder) const;

  struct LinkResult {
    bool is_linked = false;
    std::string why_not;  // for people
  };
  // Makes it a file of the checkpoint in `folder` too, which has none. Not linked: it is gone, another one or written
  // to by now, or cannot be linked there (another file system, one without links, too many of them), and `folder` has
  // nothing of it.
  // Errors: the system's: something may be left
  absl::StatusOr<LinkResult> LinkInto(const std::string& folder) const;

 private:
  // By which the same bytes are known again without reading them. Not by the time of the inode's change, which each
  // link is.
  struct Identity {
    uint64_t device = 0, inode = 0;
    int64_t num_bytes = 0, modified_seconds = 0, modified_nanoseconds = 0;
    friend bool operator==(const Identity&, const Identity&) = default;
  };
  static absl::StatusOr<Identity> IdentityOf(const std::string& path);

  FrozenFile(std::string path, const Identity& identity) : path_(std::move(path)), identity_(identity) {}

  std::string path_;
  Identity identity_;
};

// With the sum of its bytes, which was taken, or compared, since the file was looked at.
struct SummedFrozenFile {
  FrozenFile file;
  FileSum sum;
};

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_FROZEN_FILE_H_
