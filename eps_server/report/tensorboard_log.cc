#include "eps_server/report/tensorboard_log.h"

#include <fcntl.h>

#include <algorithm>
#include <boost/crc.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "eps_server/report/reward_fields.h"
#include "eps_server/report/tensorboard_event.pb.h"

namespace eps::server {
namespace {

using tensorboard::Event;

// TensorBoard reads what has "tfevents" in its name, in the order of names.
constexpr char kFilePrefix[] = "events.out.tfevents.";
constexpr char kFileSuffix[] = ".eps";

std::string FileName(int64_t unix_micros) {
  return absl::StrFormat("%s%016d%s", kFilePrefix, unix_micros, kFileSuffix);
}

// That of FileName; nullopt: a file of somebody else.
std::optional<int64_t> UnixMicrosOf(absl::string_view name) {
  int64_t unix_micros = 0;
  const bool is_ours = absl::ConsumePrefix(&name, kFilePrefix) && absl::ConsumeSuffix(&name, kFileSuffix) &&
                       absl::SimpleAtoi(name, &unix_micros);
  return is_ours ? std::make_optional(unix_micros) : std::nullopt;
}

// By when they were begun, and no others; none where the folder is not there.
absl::StatusOr<std::vector<int64_t>> FilesIn(const std::string& folder) {
  std::vector<int64_t> files;
  std::error_code error;
  std::filesystem::directory_iterator it(folder, error);
  if (error == std::errc::no_such_file_or_directory) return files;
  for (; !error && it != std::filesystem::directory_iterator(); it.increment(error)) {  // a range-for would throw
    if (const auto begun = UnixMicrosOf(it->path().filename().string()); begun.has_value()) files.push_back(*begun);
  }
  if (error) return FileError(error.value(), "list", folder);
  return files;
}

// Of the masked CRC-32C that TFRecord has: one over bytes which hold such sums themselves would be weaker.
uint32_t MaskedCrc(absl::string_view bytes) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const uint32_t sum = crc.checksum();
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8u;
}

Event NewEvent(int64_t step) {
  Event event;
  event.set_wall_time(absl::ToDoubleSeconds(absl::Now() - absl::UnixEpoch()));
  event.set_step(step);
  return event;
}

void Add(Event& event, std::string tag, double value) {
  tensorboard::Summary::Value& added = *event.mutable_summary()->add_value();
  added.set_tag(std::move(tag));
  added.set_simple_value(static_cast<float>(value));
}

void AddRewardsTo(Event& event, absl::string_view group, const PairRewards& rewards) {
  AddRewards(rewards, [&](const char* name, double value) { Add(event, absl::StrCat(group, "/", name), value); });
}

std::string RecordOf(const Event& event) { return TfRecord(event.SerializeAsString()); }

}  // namespace

std::string TfRecord(absl::string_view bytes) {
  const auto number = [](auto value) { return std::string(reinterpret_cast<const char*>(&value), sizeof(value)); };
  const std::string length = number(static_cast<uint64_t>(bytes.size()));  // little-endian, as all targets are
  return absl::StrCat(length, number(MaskedCrc(length)), bytes, number(MaskedCrc(bytes)));
}

absl::StatusOr<std::unique_ptr<TensorboardLog>> TensorboardLog::Open(const RunFolder& folder, int64_t first_step) {
  const std::string in = folder.tensorboard();
  EPS_RETURN_IF_ERROR(MakeDirs(in));
  // Behind all that are there, also where a clock went back, or another host's was ahead.
  EPS_ASSIGN_OR_RETURN(const std::vector<int64_t> before, FilesIn(in));
  int64_t begun = absl::ToUnixMicros(absl::Now());
  for (const int64_t each : before) begun = std::max(begun, each + 1);
  const std::string path = absl::StrCat(in, "/", FileName(begun));
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_EXCL));
  auto growing = std::make_unique<GrowingFile>(path, std::move(file), 0);
  Event version = NewEvent(0);
  version.set_file_version("brain.Event:2");
  growing->Append(RecordOf(version));
  Event start = NewEvent(first_step);
  start.mutable_session_log()->set_status(tensorboard::SessionLog::START);
  growing->Append(RecordOf(start));
  return std::unique_ptr<TensorboardLog>(new TensorboardLog(std::move(growing)));
}

absl::Status TensorboardLog::RemoveFiles(const RunFolder& folder) {
  EPS_ASSIGN_OR_RETURN(const std::vector<int64_t> files, FilesIn(folder.tensorboard()));
  for (const int64_t begun : files) {
    EPS_RETURN_IF_ERROR(RemoveIfThere(absl::StrCat(folder.tensorboard(), "/", FileName(begun))));
  }
  return absl::OkStatus();
}

void TensorboardLog::OnCommit(const StepReport& report) {
  Event event = NewEvent(report.step.value());
  Add(event, "train/loss", report.loss);
  Add(event, "train/learning_rate", report.learning_rate);
  Add(event, "train/gradient_norm",
      report.gradient_norm < 0 ? std::numeric_limits<double>::quiet_NaN() : report.gradient_norm);
  Add(event, "train/loss_scale", report.loss_scale);
  Add(event, "speed/tokens_per_second", report.tokens_per_second);
  Add(event, "speed/step_seconds", report.seconds);
  Add(event, "speed/workers", report.workers);
  if (report.seconds > 0) Add(event, "speed/model_flops_per_second", report.model_flops / report.seconds);
  if (report.pairs.has_value()) {
    Add(event, "train/accuracy", report.pairs->accuracy);
    AddRewardsTo(event, "train", report.pairs->rewards);
  }
  if (report.expert_load.has_value()) {
    Add(event, "experts/busiest", report.expert_load->busiest);
    Add(event, "experts/mean_busiest", report.expert_load->mean_busiest);
    Add(event, "experts/idle", static_cast<double>(report.expert_load->idle));
  }
  for (const auto& [cause, share] : report.wait_fraction) Add(event, absl::StrCat("waits/", cause), share);
  file_->Append(RecordOf(event));
}

void TensorboardLog::OnEvaluation(const EvaluationReport& report) {
  Event event = NewEvent(report.version.value());
  Add(event, "evaluation/loss", report.loss);
  if (!report.is_of_samples) Add(event, "evaluation/perplexity", std::exp(report.loss));
  Add(event, "evaluation/accuracy", report.accuracy);
  if (report.rewards.has_value()) AddRewardsTo(event, "evaluation", *report.rewards);
  file_->Append(RecordOf(event));
}

}  // namespace eps::server
