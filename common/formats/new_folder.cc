#include "common/formats/new_folder.h"

#include <errno.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr char kAside[] = ".tmp.";  // OUT.tmp.PID is OUT while it is written, locked by who writes it

// Removes what writers of `folder` left that were killed. One that writes still, in whatever container, has its lock.
void RemoveLeftovers(const std::string& folder) {
  const std::filesystem::path path(folder);
  const std::string prefix = path.filename().string() + kAside;
  std::error_code error;
  std::filesystem::directory_iterator entry(path.parent_path(), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int64_t pid = 0;
    if (!absl::StartsWith(name, prefix) || !absl::SimpleAtoi(name.substr(prefix.size()), &pid)) continue;
    const absl::StatusOr<FileDescriptor> lock = LockDirectory(entry->path().string());
    std::error_code ignored;
    if (lock.ok()) std::filesystem::remove_all(entry->path(), ignored);
  }
}

}  // namespace

absl::Status CheckNewFolder(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    if (!std::filesystem::is_symlink(folder, ignored)) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(folder, " is a link that leads nowhere; choose another name"));
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    return absl::AlreadyExistsError(absl::StrCat(folder, " is there and no folder; choose another name"));
  }
  if (std::filesystem::is_empty(folder, ignored)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(folder, " is there and not empty; choose another folder"));
}

absl::Status WriteNewFolder(const std::string& folder, const std::function<absl::Status(const std::string&)>& write) {
  EPS_RETURN_IF_ERROR(CheckNewFolder(folder));
  std::error_code error, ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(folder, error);
  if (error) return FileError(error.value(), "find", folder);
  // Where a link leads: beside the folder that it names is the disk that was meant.
  const std::filesystem::path target = std::filesystem::weakly_canonical(absolute, error);
  if (error) return FileError(error.value(), "find", folder);
  const std::string clean = target.has_filename() ? target.string() : target.parent_path().string();
  RemoveLeftovers(clean);
  const std::string aside = absl::StrCat(clean, kAside, getpid());
  EPS_RETURN_IF_ERROR(MakeDirs(aside));
  EPS_ASSIGN_OR_RETURN(const FileDescriptor lock, LockDirectory(aside));
  absl::Status status = write(aside);
  if (status.ok()) {
    std::filesystem::remove(clean, ignored);  // an empty folder would be in the way
    if (std::rename(aside.c_str(), clean.c_str()) != 0) status = FileError(errno, "rename", aside);
  }
  if (!status.ok()) {
    std::filesystem::remove_all(aside, ignored);
    return status;
  }
  return SyncDirectory(DirName(clean));
}

}  // namespace eps
