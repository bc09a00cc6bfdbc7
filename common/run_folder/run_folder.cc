#include "common/run_folder/run_folder.h"

#include <limits.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"

namespace eps {
namespace {

// What a run puts behind its folder's path: "/checkpoints/.removed-step-00000120/optimizer.safetensors.tmp.4194304.1", with
// room for more steps and tries.
constexpr size_t kLongestName = 128;

// Whether `name` is one that CreateTemporaryFile gives to what is to become the file `of`.
bool IsTemporaryFileOf(absl::string_view of, absl::string_view name) {
  if (!absl::ConsumePrefix(&name, of) || !absl::ConsumePrefix(&name, ".tmp.")) return false;
  const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(name, absl::MaxSplits('.', 1));
  int64_t pid = 0, number = 0;
  return absl::SimpleAtoi(parts.first, &pid) && absl::SimpleAtoi(parts.second, &number);
}

}  // namespace

bool RunFolder::HoldsCheckpoints() const { return checkpoints().HoldsAny().value_or(false); }

absl::Status RunFolder::CheckHoldsNoRun() const {
  EPS_RETURN_IF_ERROR(CheckCanGoOn());
  if (!HoldsCheckpoints()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--out ", path_,
                   " holds a run already: give --resume to go on from its newest checkpoint, or another folder for a "
                   "new run"));
}

absl::Status RunFolder::CheckCanGoOn() const {
  if (path_.size() + kLongestName > PATH_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("--out: ", path_.size(), " bytes, at most ", PATH_MAX - kLongestName,
                                                   ", as the system takes paths of ", PATH_MAX));
  }
  EPS_ASSIGN_OR_RETURN(const bool holds_any, checkpoints().HoldsAny());
  std::error_code ignored;
  const bool has_ended = std::filesystem::exists(summary(), ignored);
  EPS_ASSIGN_OR_RETURN(const std::optional<std::string> latest, checkpoints().LatestOfNone());
  if (latest.has_value()) {
    return absl::FailedPreconditionError(
        absl::StrCat("--out ", path_, ": checkpoints/latest names ", EscapeText(*latest),
                     ", which is not there, nor is any other checkpoint: put it back, ",
                     has_ended ? "" : "remove checkpoints/latest to begin from step 0, ", "or give another folder"));
  }
  if (holds_any || !has_ended) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("--out ", path_,
                   " holds a run already, which has ended and left no checkpoint: there is nothing to go on from; give "
                   "another folder for a new run"));
}

void RunFolder::RemoveHalfWritten() const {
  static constexpr absl::string_view kWritten[] = {"metrics.jsonl", "evaluations.jsonl", "summary.json",
                                                   "failure.json",  "loss.svg",          "starting.json",
                                                   "endpoints.json"};
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    const auto is_of = [&name](absl::string_view written) { return IsTemporaryFileOf(written, name); };
    if (std::any_of(std::begin(kWritten), std::end(kWritten), is_of)) std::filesystem::remove(entry.path(), ignored);
  }
}

}  // namespace eps
