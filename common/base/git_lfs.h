#ifndef EPS_COMMON_BASE_GIT_LFS_H_
#define EPS_COMMON_BASE_GIT_LFS_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace eps {

// How a pointer of Git LFS begins: the text that stands in a large file's place until it is fetched.
inline constexpr absl::string_view kGitLfsPointer = "version https://git-lfs.github.com/spec/";

// Errors: INVALID_ARGUMENT a file that begins so is a pointer, and what to do: to be put behind its name
inline absl::Status CheckNoGitLfsPointer(absl::string_view beginning) {
  if (!absl::StartsWith(beginning, kGitLfsPointer)) return absl::OkStatus();
  return absl::InvalidArgumentError("is a pointer of Git LFS, and not the file itself: run `git lfs pull`");
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_GIT_LFS_H_
