#include "eps_server/report/step_lines.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/mapped_file.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

bool IsOfStepBefore(absl::string_view line, int64_t first_step) {
  const auto parsed = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
  if (!parsed.is_object()) return false;
  const auto step = parsed.find("step");
  return step != parsed.end() && step->is_number_integer() && step->get<int64_t>() < first_step;
}

// Where the last whole line of a step before `first_step` ends; 0: there is none. Looks at the file from its end on, and
// no further than it must: that of millions of steps has gigabytes.
absl::StatusOr<int64_t> EndOfStepsBefore(const std::string& path, int64_t first_step) {
  std::error_code ignored;
  if (first_step == 0 || std::filesystem::file_size(path, ignored) == 0) return 0;
  const absl::StatusOr<std::unique_ptr<MappedFile>> file = MappedFile::Open(path);
  if (absl::IsNotFound(file.status())) return 0;  // a run may be resumed from its checkpoints alone
  EPS_RETURN_IF_ERROR(file.status());
  absl::string_view kept(reinterpret_cast<const char*>((*file)->bytes().data()), (*file)->bytes().size());
  kept = kept.substr(0, kept.rfind('\n') + 1);  // npos + 1: not one line is whole
  while (!kept.empty()) {
    const size_t begin = kept.substr(0, kept.size() - 1).rfind('\n') + 1;
    if (IsOfStepBefore(kept.substr(begin), first_step)) break;
    kept = kept.substr(0, begin);
  }
  return static_cast<int64_t>(kept.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<GrowingFile>> OpenStepLines(const std::string& path, int64_t first_step) {
  EPS_RETURN_IF_ERROR(CheckReplaceable(path));
  EPS_ASSIGN_OR_RETURN(const int64_t num_bytes, EndOfStepsBefore(path, first_step));
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT));
  if (ftruncate(file.get(), static_cast<off_t>(num_bytes)) != 0) return FileError(errno, "shorten", path);
  return std::make_unique<GrowingFile>(path, std::move(file), num_bytes);
}

}  // namespace eps::server
