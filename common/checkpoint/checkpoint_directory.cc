#include "common/checkpoint/checkpoint_directory.h"

#include <errno.h>
#include <stdio.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

constexpr absl::string_view kWriting = ".tmp-";
constexpr absl::string_view kReplaced = ".old-";
constexpr absl::string_view kRemoved = ".removed-";
constexpr int64_t kMaxLatestBytes = 256;

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? FileError(error.value(), "remove", path) : absl::OkStatus();
}

absl::Status Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return FileError(errno, absl::StrCat("rename to \"", to, "\""), from);
  return absl::OkStatus();
}

// Every name in folder `path`; none if it is not there.
absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& path) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator it(path, error);
  if (error == std::errc::no_such_file_or_directory) return names;
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error) return FileError(error.value(), "list", path);
  return names;
}

}  // namespace

std::string StepFolderName(Version version) { return absl::StrFormat("step-%08d", version.value()); }

std::optional<Version> ParseStepFolderName(absl::string_view name) {
  int64_t number = 0;
  if (!absl::ConsumePrefix(&name, "step-") || !absl::SimpleAtoi(name, &number) || number < 0) return std::nullopt;
  // One name per version: no sign, no space, no other count of zeros.
  if (StepFolderName(Version(number)) != absl::StrCat("step-", name)) return std::nullopt;
  return Version(number);
}

std::string CheckpointDirectory::FolderOf(Version version) const {
  return absl::StrCat(path_, "/", StepFolderName(version));
}

absl::StatusOr<std::vector<Version>> CheckpointDirectory::Steps() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  std::vector<Version> steps;
  for (const std::string& name : names) {
    const std::optional<Version> version = ParseStepFolderName(name);
    if (version.has_value() && IsFolder(absl::StrCat(path_, "/", name))) steps.push_back(*version);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

absl::StatusOr<bool> CheckpointDirectory::HoldsAny() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  return std::any_of(names.begin(), names.end(), [](absl::string_view name) {
    absl::ConsumePrefix(&name, kReplaced);
    return name == kLatestFile || ParseStepFolderName(name).has_value();
  });
}

absl::StatusOr<std::optional<std::string>> CheckpointDirectory::LatestOfNone() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  bool has_latest = false;
  for (const std::string& name : names) {
    absl::string_view step = name;
    absl::ConsumePrefix(&step, kReplaced);
    if (ParseStepFolderName(step).has_value() && IsFolder(absl::StrCat(path_, "/", name))) return std::nullopt;
    has_latest |= name == kLatestFile;
  }
  if (!has_latest) return std::nullopt;
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(absl::StrCat(path_, "/", kLatestFile), kMaxLatestBytes));
  return std::string(absl::StripSuffix(text, "\n"));
}

std::optional<Version> CheckpointDirectory::Latest() const {
  const absl::StatusOr<std::string> text = ReadFile(absl::StrCat(path_, "/", kLatestFile), kMaxLatestBytes);
  if (!text.ok()) return std::nullopt;
  const std::optional<Version> version = ParseStepFolderName(absl::StripSuffix(*text, "\n"));
  if (!version.has_value() || !IsFolder(FolderOf(*version))) return std::nullopt;
  return version;
}

absl::Status CheckpointDirectory::CleanUp() const {
  EPS_ASSIGN_OR_RETURN(const std::vector<std::string> names, NamesIn(path_));
  for (const std::string& name : names) {
    const std::string path = absl::StrCat(path_, "/", name);
    absl::string_view step = name;
    if (absl::ConsumePrefix(&step, kReplaced) && ParseStepFolderName(step).has_value()) {
      const std::string place = absl::StrCat(path_, "/", step);
      EPS_RETURN_IF_ERROR(IsFolder(place) ? RemoveTree(path) : Rename(path, place));
    } else if (((absl::ConsumePrefix(&step, kWriting) || absl::ConsumePrefix(&step, kRemoved)) &&
                ParseStepFolderName(step).has_value()) ||
               absl::StartsWith(name, absl::StrCat(kLatestFile, ".tmp."))) {  // WriteFileAtomically's
      EPS_RETURN_IF_ERROR(RemoveTree(path));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> CheckpointDirectory::StartWriting(Version version) const {
  const std::string aside = absl::StrCat(path_, "/", kWriting, StepFolderName(version));
  EPS_RETURN_IF_ERROR(RemoveTree(aside));
  EPS_RETURN_IF_ERROR(MakeDirs(aside));
  return aside;
}

absl::Status CheckpointDirectory::FinishWriting(Version version) const {
  const std::string name = StepFolderName(version);
  const std::string aside = absl::StrCat(path_, "/", kWriting, name);
  const std::string old = absl::StrCat(path_, "/", kReplaced, name);
  const std::string place = FolderOf(version);
  EPS_RETURN_IF_ERROR(SyncDirectory(aside));
  const bool replaces = IsFolder(place);
  // A folder that is not empty cannot be renamed over. Killed between the two, CleanUp puts the old one back.
  if (replaces) {
    EPS_RETURN_IF_ERROR(RemoveTree(old));
    EPS_RETURN_IF_ERROR(Rename(place, old));
  }
  if (const absl::Status status = Rename(aside, place); !status.ok()) {
    if (replaces) Rename(old, place).IgnoreError();  // CleanUp tries again
    return status;
  }
  EPS_RETURN_IF_ERROR(SyncDirectory(path_));
  EPS_RETURN_IF_ERROR(SyncDirectory(DirName(path_)));
  EPS_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(path_, "/", kLatestFile), name + "\n"));
  if (const absl::Status status = RemoveTree(old); !status.ok()) {  // CleanUp tries again
    LogWarning("checkpoint_not_removed", {{"path", old}, {"error", status.message()}});
  }
  return absl::OkStatus();
}

void CheckpointDirectory::AbandonWriting(Version version) const {
  const std::string name = StepFolderName(version);
  RemoveTree(absl::StrCat(path_, "/", kWriting, name)).IgnoreError();  // CleanUp tries again
  // FinishWriting may have stopped after its renames. What it replaced is wanted no more, and a full disk wants the room.
  if (IsFolder(FolderOf(version))) RemoveTree(absl::StrCat(path_, "/", kReplaced, name)).IgnoreError();
}

absl::Status CheckpointDirectory::Remove(Version version) const {
  // Renamed first: a folder never stands under its own name with a part of its files.
  const std::string aside = absl::StrCat(path_, "/", kRemoved, StepFolderName(version));
  EPS_RETURN_IF_ERROR(RemoveTree(aside));
  EPS_RETURN_IF_ERROR(Rename(FolderOf(version), aside));
  return RemoveTree(aside);
}

}  // namespace eps
