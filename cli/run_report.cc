#include "cli/run_report.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/progress.h"
#include "common/base/byte_size.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/state_names.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/numeric/quantized.h"
#include "common/run_folder/run_folder.h"
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

bool HasNumber(const nlohmann::json& json, const char* key) { return json.contains(key) && json[key].is_number(); }

// Whether all labels were masked, of a step or of all of them, so that there is no loss.
bool CountedNothing(const nlohmann::json& json) { return HasNumber(json, "tokens") && json["tokens"] == 0; }

std::string Loss(const nlohmann::json& json, const char* key) {
  if (HasNumber(json, key)) return absl::StrFormat("%.3f", json[key].get<double>());
  return CountedNothing(json) ? "none" : "not finite";
}

// Of the last one, if there was any.
std::string EvaluationText(const nlohmann::json& summary) {
  const auto evaluation = summary.find("evaluation");
  if (evaluation == summary.end() || !evaluation->is_object()) return "";
  return absl::StrCat(", evaluation loss ", Loss(*evaluation, "loss"));
}

// What its tokens count; an older program's summary does not say so.
std::string Counted(const nlohmann::json& summary) {
  const auto counted = summary.find("counted");
  return counted != summary.end() && counted->is_string() ? Printable(counted->get<std::string>()) : "tokens";
}

nlohmann::json ReadSummary(const std::string& out) {
  const absl::StatusOr<std::string> text = ReadFile(RunFolder(out).summary());
  if (!text.ok()) return nlohmann::json();
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() ? json : nlohmann::json();
}

int64_t WholeNumber(const nlohmann::json& json, const char* key) { return static_cast<int64_t>(Number(json, key)); }

bool HasDoneAllSteps(const nlohmann::json& summary) {
  return summary.contains("steps_planned") && WholeNumber(summary, "steps") >= WholeNumber(summary, "steps_planned");
}

// The last lines of `path` that are whole, at most `count`, in their order, of a process that may have been killed while it
// wrote the next one. Read from the end: of a long run there are many.
std::vector<std::string> LastLines(const std::string& path, size_t count) {
  constexpr int64_t kMostBytes = 1 << 16;  // a line has some 500
  std::error_code error;
  const auto file_bytes = static_cast<int64_t>(std::filesystem::file_size(path, error));
  const absl::StatusOr<FileDescriptor> file = OpenFile(path, O_RDONLY);
  std::vector<std::string> lines;
  if (error || !file.ok()) return lines;
  std::string text(static_cast<size_t>(std::min(file_bytes, kMostBytes)), '\0');
  const ssize_t got = pread(file->get(), text.data(), text.size(), file_bytes - static_cast<int64_t>(text.size()));
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  size_t end = text.rfind('\n');
  while (end != std::string::npos && end > 0 && lines.size() < count) {
    const size_t before = text.rfind('\n', end - 1);
    const size_t begin = before == std::string::npos ? 0 : before + 1;
    lines.insert(lines.begin(), text.substr(begin, end - begin));
    end = before;
  }
  return lines;
}

// The same of the first line, where it is no longer than a line may be.
std::string FirstLine(const std::string& path) {
  constexpr size_t kMostBytes = 1 << 16;
  const absl::StatusOr<FileDescriptor> file = OpenFile(path, O_RDONLY);
  if (!file.ok()) return "";
  std::string text(kMostBytes, '\0');
  const ssize_t got = pread(file->get(), text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(got, 0)));
  const size_t end = text.find('\n');
  return end == std::string::npos ? "" : text.substr(0, end);
}

// What metrics.jsonl says of a step; null: nothing.
nlohmann::json ParseStep(const std::string& line) {
  nlohmann::json step = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  const bool is_step = step.is_object() && step.contains("step") && step["step"].is_number_integer();
  return is_step ? step : nlohmann::json();
}
nlohmann::json FirstStep(const std::string& out) { return ParseStep(FirstLine(RunFolder(out).metrics())); }
std::vector<nlohmann::json> LastSteps(const std::string& out, size_t count) {
  std::vector<nlohmann::json> steps;
  for (const std::string& line : LastLines(RunFolder(out).metrics(), count)) steps.push_back(ParseStep(line));
  return steps;
}

// failure.json of the run in `out`, which its daemon left; null: it has not failed, or nobody knows.
nlohmann::json ReadFailure(const std::string& out) {
  const absl::StatusOr<std::string> text = ReadFile(RunFolder(out).failure());
  if (!text.ok()) return nlohmann::json();
  nlohmann::json json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("failure") && json["failure"].is_string() ? json : nlohmann::json();
}

// Why it has; "": it has not, or nobody knows.
std::string FailureOf(const std::string& out) {
  const nlohmann::json json = ReadFailure(out);
  return json.is_null() ? "" : json["failure"].get<std::string>();
}

// Whether it would fail again if it went on as it is. An older program's failure.json does not say so.
bool HasDiverged(const std::string& out) {
  const nlohmann::json json = ReadFailure(out);
  return json.is_object() && json.value("diverged", nlohmann::json()) == true;
}

// "4 of 9 steps were done, loss 2.250"; without "of 9" where nobody says of how many.
std::string DoneText(const nlohmann::json& summary) {
  const int64_t steps = WholeNumber(summary, "steps");
  const std::string of =
      summary.contains("steps_planned") ? absl::StrCat(" of ", WholeNumber(summary, "steps_planned")) : "";
  return absl::StrCat(
      steps, of, steps == 1 && of.empty() ? " step was done" : " steps were done",
      steps == 0 || !summary.contains("loss_last") ? "" : absl::StrCat(", loss ", Loss(summary, "loss_last")));
}

// Its folder; "": there is none.
std::string NewestCheckpoint(const std::string& out) {
  const CheckpointDirectory checkpoints = RunFolder(out).checkpoints();
  const absl::StatusOr<Version> newest = FindNewestCheckpoint(checkpoints);
  return newest.ok() ? checkpoints.FolderOf(*newest) : "";
}

// How many the run in `out` is to have, by its newest checkpoint; 0: not known.
int64_t StepsPlanned(const std::string& out) {
  const std::string newest = NewestCheckpoint(out);
  if (newest.empty()) return 0;
  const absl::StatusOr<Manifest> manifest = ReadManifest(newest);
  return manifest.ok() ? manifest->run.steps : 0;
}

// What summary.json says of the run in `out`, or what can be said in its place where metrics.jsonl goes further. Null:
// nothing.
nlohmann::json ReadStanding(const std::string& out) {
  nlohmann::json standing = ReadSummary(out);
  const std::vector<nlohmann::json> last = LastSteps(out, 1);
  if (last.empty() || last.back().is_null()) return standing;
  const nlohmann::json& line = last.back();
  const int64_t steps = WholeNumber(line, "step") + 1;
  if (!standing.is_null() && WholeNumber(standing, "steps") >= steps) return standing;
  const int64_t planned =
      standing.contains("steps_planned") ? WholeNumber(standing, "steps_planned") : StepsPlanned(out);
  standing = {{"steps", steps}};
  if (!CountedNothing(line)) standing["loss_last"] = line.value("loss", nlohmann::json());
  if (planned > 0) standing["steps_planned"] = planned;
  return standing;
}

// Of `skipped` steps of the run in `out`.
std::string SkippedText(int64_t skipped, const std::string& out) {
  constexpr char kAdvice[] = "lower optimizer.schedule.peak, or warm up longer";
  const auto is_scaled = [](const nlohmann::json& step) {
    return HasNumber(step, "loss_scale") && step["loss_scale"] != 1;
  };
  // A scale that grows is too large once in a while, and never twice in a row.
  const std::vector<nlohmann::json> last = LastSteps(out, 2);
  const std::string steps = absl::StrCat(skipped, skipped == 1 ? " step" : " steps");
  const char* were = skipped == 1 ? " was" : " were";
  // Without FP16 it is 1 in every step.
  if (!is_scaled(FirstStep(out)) && std::none_of(last.begin(), last.end(), is_scaled)) {
    return absl::StrCat(steps, were, " skipped, as the gradient was not finite: ", kAdvice);
  }
  // So a loss scale finds its place, and nothing is wrong, unless it still had not at the end.
  const std::string text =
      absl::StrCat("the loss scale of FP16 was too large in ", steps, ", which", were, " skipped and halved it");
  const auto is_skipped = [](const nlohmann::json& step) {
    return step.is_object() && step.value("skipped", nlohmann::json()) == true;
  };
  if (last.empty() || !std::all_of(last.begin(), last.end(), is_skipped)) return text;
  return absl::StrCat(text, "; the last step is among them, with a scale of ",
                      absl::StrFormat("%.10g", Number(last.back(), "loss_scale")),
                      ": give precision.loss_scale.initial a smaller one, ", kAdvice);
}

}  // namespace

std::string StartText(const RunOutline& outline, const StartOptions& options) {
  const double epochs = outline.samples > 0 ? static_cast<double>(outline.steps * outline.samples_per_step) /
                                                  static_cast<double>(outline.samples)
                                            : 0;
  std::string text = absl::StrCat("eps: ", ShortCount(outline.parameters), " parameters, ");
  if (outline.trainable_parameters < outline.parameters) {
    absl::StrAppend(&text, "of which ", ShortCount(outline.trainable_parameters), " train, ",
                    outline.frozen_format.has_value()
                        ? absl::StrCat("frozen matrices in ", NameOf(*outline.frozen_format), ", ")
                        : "");
  }
  absl::StrAppend(&text, FormatByteSize(outline.model_state_bytes), " of state; ", outline.steps, " steps of ",
                  outline.tokens_per_step, " tokens");
  if (outline.samples > 0) {
    absl::StrAppend(&text, "; ", outline.samples, " samples");
    // Of several sources each is gone through at a pace of its own.
    if (outline.sources == 1) {
      absl::StrAppend(&text, ", ", epochs < 100 ? absl::StrFormat("%.2g", epochs) : absl::StrFormat("%.0f", epochs),
                      " epochs");
    }
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
  const int64_t steps = WholeNumber(summary, "steps");
  const int64_t planned = WholeNumber(summary, "steps_planned");
  std::string text = steps < planned ? absl::StrCat("eps: stopped after step ", steps, " of ", planned)
                                     : absl::StrCat("eps: done: ", steps, " steps");
  absl::StrAppend(&text, absl::StrFormat(" in %.1f s", Number(summary, "seconds")));
  if (steps > 0) {
    absl::StrAppend(&text, ", loss ", Loss(summary, "loss_first"), " -> ", Loss(summary, "loss_last"),
                    EvaluationText(summary),
                    absl::StrFormat(", %.0f %s/s", Number(summary, "tokens_per_second"), Counted(summary)));
  }
  if (const double flops = Number(summary, "model_flops_per_second"); flops > 0) {
    absl::StrAppend(&text, ", ", FormatFlopRate(flops), " of the model");
  }
  if (const int64_t peak_bytes = WholeNumber(summary, "device_peak_bytes"); peak_bytes > 0) {
    absl::StrAppend(&text, ", device ", FormatByteSize(peak_bytes), " of ",
                    FormatByteSize(WholeNumber(summary, "device_cap_bytes")));
  }
  const bool has_checkpoint = !summary.contains("newest_checkpoint") || summary["newest_checkpoint"] != "";
  absl::StrAppend(&text,
                  has_checkpoint ? "; summary.json, loss.svg and checkpoints are in "
                                 : "; there is no checkpoint (checkpoint.last); summary.json and loss.svg are in ",
                  out);
  if (steps < planned) absl::StrAppend(&text, "\neps: ", NewestCheckpointText(out));
  return text;
}

std::vector<std::string> EndWarnings(const std::string& out) {
  const nlohmann::json summary = ReadSummary(out);
  std::vector<std::string> warnings;
  if (const int64_t skipped = WholeNumber(summary, "skipped_steps"); skipped > 0) {
    warnings.push_back(SkippedText(skipped, out));
  }
  if (WholeNumber(summary, "steps") == 0 || HasNumber(summary, "loss_last")) return warnings;
  warnings.push_back(CountedNothing(summary)
                         ? "no token of any step was counted, so that there is no loss: all labels are masked"
                         : "the loss of the last step is not finite: see the steps before it in metrics.jsonl");
  return warnings;
}

bool HasFailed(const std::string& out) { return !FailureOf(out).empty(); }

bool IsFinished(const std::string& out) { return HasDoneAllSteps(ReadSummary(out)); }

int64_t StepsDone(const std::string& out) {
  const nlohmann::json summary = ReadSummary(out);
  return summary.is_null() ? 0 : WholeNumber(summary, "steps");
}

std::string FinishedText(const std::string& out) {
  const nlohmann::json summary = ReadSummary(out);
  if (!HasDoneAllSteps(summary)) return "";
  if (summary.value("evaluates", false)) {
    const std::string found = EvaluationText(summary);
    return absl::StrCat("the evaluation in ", out, " has ended",
                        found.empty() ? ": it was stopped before it had found anything" : found);
  }
  const std::string checkpoint = NewestCheckpoint(out);
  return absl::StrCat("the run in ", out, " has ended: ", DoneText(summary), EvaluationText(summary), "; ",
                      checkpoint.empty() ? "it left no checkpoint (checkpoint.last)"
                                         : absl::StrCat("the newest checkpoint is ", checkpoint));
}

std::string FinishedJson(const std::string& out) { return IsFinished(out) ? NotRunningJson(out) : ""; }

std::string NotRunningJson(const std::string& out) {
  const nlohmann::json standing = ReadStanding(out);
  const std::string checkpoint = NewestCheckpoint(out), failure = FailureOf(out);
  if (standing.is_null() && checkpoint.empty() && failure.empty()) return "";
  // 64-bit numbers are texts there, as a running daemon's are.
  const char* state = IsFinished(out) ? run_state::kFinished : "not_running";
  nlohmann::ordered_json status = {{"state", failure.empty() ? state : run_state::kFailed}};
  if (!failure.empty()) status["failure"] = failure;
  const std::pair<const char*, const char*> counts[] = {{"step", "steps"},
                                                        {"steps", "steps_planned"},
                                                        {"tokens", "tokens"},
                                                        {"parameters", "parameters"},
                                                        {"trainable_parameters", "trainable_parameters"}};
  for (const auto& [key, member] : counts) {
    if (standing.contains(member)) status[key] = absl::StrCat(WholeNumber(standing, member));
  }
  if (WholeNumber(standing, "steps") > 0 && standing.contains("loss_last")) status["loss"] = standing["loss_last"];
  status["newest_checkpoint"] = checkpoint;
  // A path need not be UTF-8.
  return status.dump(1, ' ', /*ensure_ascii=*/false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::string NotRunningText(const std::string& out) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(out, ignored)) return absl::StrCat("there is no run in ", out);
  const nlohmann::json standing = ReadStanding(out);
  if (const std::string failure = FailureOf(out); !failure.empty()) {
    const std::string checkpoint = NewestCheckpoint(out);
    return absl::StrCat("the run in ", out, " has failed: ", Printable(failure),
                        standing.is_null() ? "" : absl::StrCat("; ", DoneText(standing)), "; ",
                        checkpoint.empty() || HasDiverged(out)
                            ? NewestCheckpointText(out)
                            : absl::StrCat("the newest checkpoint is ", checkpoint,
                                           ", from which --resume goes on once that is mended"));
  }
  if (std::string finished = FinishedText(out); !finished.empty()) return finished;
  return absl::StrCat("no daemon runs for ", out, standing.is_null() ? "" : absl::StrCat(": ", DoneText(standing)),
                      "; ", NewestCheckpointText(out));
}

std::string NewestCheckpointText(const std::string& out) {
  const std::string checkpoint = NewestCheckpoint(out);
  if (checkpoint.empty()) return "there is no checkpoint";
  return absl::StrCat("the newest checkpoint is ", checkpoint,
                      HasDiverged(out)
                          ? "; --resume would fail again: eps branch goes on from it, or from an older one, "
                            "with a lower optimizer.schedule.peak"
                          : "; go on with --resume");
}

}  // namespace eps::cli
