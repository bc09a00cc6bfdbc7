#include "cli/run_report.h"

#include <filesystem>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

std::string ShortCount(int64_t count) {
  if (count >= 1000000000) return absl::StrFormat("%.1f G", static_cast<double>(count) / 1e9);
  if (count >= 1000000) return absl::StrFormat("%.1f M", static_cast<double>(count) / 1e6);
  if (count >= 10000) return absl::StrFormat("%.1f K", static_cast<double>(count) / 1e3);
  return absl::StrCat(count);
}

// The number at `key`, 0 if there is none.
double Number(const nlohmann::json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? json[key].get<double>() : 0;
}

std::string Loss(const nlohmann::json& json, const char* key) {
  return json.contains(key) && json[key].is_number() ? absl::StrFormat("%.3f", json[key].get<double>()) : "not finite";
}

// Of the last one, if there was any.
std::string EvaluationText(const nlohmann::json& summary) {
  const auto evaluation = summary.find("evaluation");
  if (evaluation == summary.end() || !evaluation->is_object()) return "";
  return absl::StrCat(", evaluation loss ", Loss(*evaluation, "loss"));
}

nlohmann::json ReadSummary(const std::string& out) {
  const absl::StatusOr<std::string> text = ReadFile(out + "/summary.json");
  if (!text.ok()) return nlohmann::json();
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json();
}

}  // namespace

std::string StartText(const RunOutline& outline, const StartOptions& options) {
  const double epochs = outline.samples > 0 ? static_cast<double>(outline.steps * outline.sequences_per_step) /
                                                  static_cast<double>(outline.samples)
                                            : 0;
  std::string text =
      absl::StrCat("eps: ", ShortCount(outline.parameters), " parameters, ", FormatByteSize(outline.model_state_bytes),
                   " of state; ", outline.steps, " steps of ", outline.tokens_per_step, " tokens");
  if (outline.samples > 0) {
    absl::StrAppend(&text, "; ", outline.samples, " samples, ", absl::StrFormat("%.2g", epochs), " epochs");
  }
  absl::StrAppend(&text, "\n");
  absl::StrAppend(&text, "eps: ", options.workers, options.workers == 1 ? " worker (" : " workers (", options.device,
                  ", ", options.threads, options.threads == 1 ? " thread" : " threads",
                  options.workers == 1 ? "" : " each");
  if (options.device_memory_bytes > 0) {
    absl::StrAppend(&text, ", at most ", FormatByteSize(options.device_memory_bytes));
  }
  absl::StrAppend(&text, "); in ", options.out);
  if (!options.resumes_from.empty()) absl::StrAppend(&text, ", from ", options.resumes_from);
  return text;
}

std::string EndText(const std::string& out) {
  const nlohmann::json summary = ReadSummary(out);
  if (summary.is_null()) return "";
  const auto steps = static_cast<int64_t>(Number(summary, "steps"));
  const auto planned = static_cast<int64_t>(Number(summary, "steps_planned"));
  const auto skipped = static_cast<int64_t>(Number(summary, "skipped_steps"));
  std::string text = steps < planned ? absl::StrCat("eps: stopped after step ", steps, " of ", planned)
                                     : absl::StrCat("eps: done: ", steps, " steps");
  absl::StrAppend(&text, absl::StrFormat(" in %.1f s, loss ", Number(summary, "seconds")), Loss(summary, "loss_first"),
                  " -> ", Loss(summary, "loss_last"), EvaluationText(summary),
                  absl::StrFormat(", %.0f tokens/s", Number(summary, "tokens_per_second")));
  if (const auto peak_bytes = static_cast<int64_t>(Number(summary, "device_peak_bytes")); peak_bytes > 0) {
    absl::StrAppend(&text, ", device ", FormatByteSize(peak_bytes), " of ",
                    FormatByteSize(static_cast<int64_t>(Number(summary, "device_cap_bytes"))));
  }
  const bool has_checkpoint = !summary.contains("newest_checkpoint") || summary["newest_checkpoint"] != "";
  absl::StrAppend(&text,
                  has_checkpoint ? "; summary.json, loss.svg and checkpoints are in "
                                 : "; there is no checkpoint (checkpoint.last); summary.json and loss.svg are in ",
                  out);
  if (skipped > 0) {
    absl::StrAppend(&text, "\neps: warning: ", skipped, skipped == 1 ? " step was" : " steps were",
                    " skipped, as the gradient was not finite: lower optimizer.schedule.peak, or warm up longer");
  }
  if (steps < planned) absl::StrAppend(&text, "\neps: ", NewestCheckpointText(out));
  return text;
}

std::string NotRunningText(const std::string& out) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(out, ignored)) return absl::StrCat("there is no run in ", out);
  const nlohmann::json summary = ReadSummary(out);
  std::string text = absl::StrCat("no daemon runs for ", out);
  if (!summary.is_null()) {
    absl::StrAppend(&text, ": ", static_cast<int64_t>(Number(summary, "steps")), " of ",
                    static_cast<int64_t>(Number(summary, "steps_planned")), " steps were done, loss ",
                    Loss(summary, "loss_last"));
  }
  return absl::StrCat(text, "; ", NewestCheckpointText(out));
}

std::string NewestCheckpointText(const std::string& out) {
  const absl::StatusOr<std::string> name = ReadFile(absl::StrCat(out, "/checkpoints/latest"));
  if (!name.ok()) return "there is no checkpoint yet";
  return absl::StrCat("the newest checkpoint is ", out, "/checkpoints/", name->substr(0, name->find('\n')),
                      "; go on with --resume");
}

}  // namespace eps::cli
