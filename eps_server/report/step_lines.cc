#include "eps_server/report/step_lines.h"

#include <fcntl.h>

#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

constexpr int64_t kMaxBytes = int64_t{4} << 30;  // ten million steps

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

absl::StatusOr<StepLines> StepLines::Open(const std::string& path, int64_t first_step) {
  std::string kept;
  if (first_step > 0) {
    absl::StatusOr<std::string> text = ReadFile(path, kMaxBytes);
    // A run may be resumed from its checkpoints alone.
    if (!text.ok() && text.status().code() != absl::StatusCode::kNotFound) return text.status();
    if (text.ok()) kept = KeepLines(*text, first_step);
  }
  EPS_RETURN_IF_ERROR(WriteFileAtomically(path, kept));
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY));
  return StepLines(path, std::move(file), static_cast<int64_t>(kept.size()));
}

void StepLines::Write(const std::string& line) {
  const absl::Status status = WriteAt(file_, path_, num_bytes_, line);
  if (status.ok()) {
    num_bytes_ += static_cast<int64_t>(line.size());
  } else if (!std::exchange(failed_, true)) {
    LogWarning("metrics_not_written", {{"error", status.ToString()}});
  }
}

}  // namespace eps::server
