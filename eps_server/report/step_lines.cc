#include "eps_server/report/step_lines.h"

#include <fcntl.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr int64_t kMaxBytes = int64_t{4} << 30;          // ten million steps
constexpr int64_t kMaxWaitingBytes = int64_t{16} << 20;  // 40,000 steps, while a disk hangs

// The lines of `text` that are whole and of steps before `first_step`.
std::string KeepLines(const std::string& text, int64_t first_step) {
  std::string kept;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;
    const auto line = nlohmann::json::parse(text.begin() + begin, text.begin() + end, nullptr, false);
    if (line.is_object()) {
      const auto step = line.find("step");
      if (step != line.end() && step->is_number_integer() && step->get<int64_t>() < first_step) {
        kept.append(text, begin, end + 1 - begin);
      }
    }
    begin = end + 1;
  }
  return kept;
}

}  // namespace

absl::StatusOr<std::unique_ptr<StepLines>> StepLines::Open(const std::string& path, int64_t first_step) {
  std::string kept;
  if (first_step > 0) {
    absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
    // A run may be resumed from its checkpoints alone.
    if (!text.ok() && text.status().code() != absl::StatusCode::kNotFound) return text.status();
    if (text.ok()) kept = KeepLines(*text, first_step);
  }
  EPS_RETURN_IF_ERROR(WriteFileAtomically(path, kept));
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY));
  return std::unique_ptr<StepLines>(new StepLines(path, std::move(file), static_cast<int64_t>(kept.size())));
}

StepLines::StepLines(std::string path, FileDescriptor file, int64_t num_bytes)
    : path_(std::move(path)),
      file_(std::move(file)),
      num_bytes_(num_bytes),
      queue_(
          [this](const std::string& line) {
            const absl::Status status = WriteAt(file_, path_, num_bytes_, line);
            if (!status.ok()) return Lose(status);
            num_bytes_ += static_cast<int64_t>(line.size());
          },
          kMaxWaitingBytes) {}

void StepLines::Write(std::string line) {
  if (!queue_.Add(std::move(line))) {
    Lose(absl::UnavailableError(absl::StrCat(path_, ": its disk has written nothing for so long that lines are lost")));
  }
}

void StepLines::Lose(const absl::Status& why) {
  if (!failed_.exchange(true)) LogWarning("metrics_not_written", {{"error", why.ToString()}});
}

}  // namespace eps::server
