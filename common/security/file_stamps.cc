#include "common/security/file_stamps.h"

#include <cerrno>
#include <tuple>
#include <utility>

namespace eps {
namespace {

int64_t Nanos(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

}  // namespace

bool FileStamps::Stamp::operator==(const Stamp& other) const {
  const auto all = [](const Stamp& stamp) {
    return std::tie(stamp.error, stamp.device, stamp.inode, stamp.mode, stamp.owner, stamp.size, stamp.modified_nanos,
                    stamp.changed_nanos);
  };
  return all(*this) == all(other);
}

FileStamps::FileStamps(std::vector<std::string> files) : files_(std::move(files)), stamps_(Take()) {}

bool FileStamps::Changed() {
  std::vector<Stamp> now = Take();
  const bool changed = now != stamps_;
  stamps_ = std::move(now);
  return changed;
}

std::vector<FileStamps::Stamp> FileStamps::Take() const {
  std::vector<Stamp> stamps;
  for (const std::string& file : files_) {
    if (file.empty()) continue;
    struct stat found = {};
    if (stat(file.c_str(), &found) != 0) {
      stamps.push_back({.error = errno});
      continue;
    }
    stamps.push_back({.device = found.st_dev,
                      .inode = found.st_ino,
                      .mode = found.st_mode,
                      .owner = found.st_uid,
                      .size = found.st_size,
                      .modified_nanos = Nanos(found.st_mtim),
                      .changed_nanos = Nanos(found.st_ctim)});
  }
  return stamps;
}

}  // namespace eps
