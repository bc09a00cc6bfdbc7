#include "eps_server/report/growing_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"

namespace eps::server {
namespace {

constexpr int64_t kMaxWaitingBytes = int64_t{16} << 20;  // 20,000 steps and more, while a disk hangs

}  // namespace

GrowingFile::GrowingFile(std::string path, FileDescriptor file, int64_t num_bytes)
    : path_(std::move(path)),
      file_(std::move(file)),
      num_bytes_(num_bytes),
      queue_(
          [this](const std::string& record) {
            const absl::Status status = WriteAt(file_, path_, num_bytes_, record);
            if (!status.ok()) return Lose(status);
            num_bytes_ += static_cast<int64_t>(record.size());
          },
          kMaxWaitingBytes) {}

void GrowingFile::Append(std::string record) {
  if (!queue_.Add(std::move(record))) {
    Lose(absl::UnavailableError(
        absl::StrCat(path_, ": its disk has written nothing for so long that what was to come is lost")));
  }
}

void GrowingFile::Lose(const absl::Status& why) {
  if (!failed_.exchange(true)) LogWarning("metrics_not_written", {{"error", why.ToString()}});
}

}  // namespace eps::server
