#include "eps_server/step/checkpoint_ledger.h"

#include <iterator>
#include <utility>

namespace eps::server {
namespace {

constexpr Version kNone(-1);
constexpr int64_t kStepsToNone = 128;  // stands for the interval of a run that has none

void Append(std::vector<CheckpointLedger::Answer> more, std::vector<CheckpointLedger::Answer>& answers) {
  std::move(more.begin(), more.end(), std::back_inserter(answers));
}

}  // namespace

CheckpointLedger::CheckpointLedger(int64_t every_steps, Version first, std::string newest_path, absl::Duration now)
    : every_steps_(every_steps),
      started_(first.value() > 0 ? first : kNone),
      written_(started_),
      newest_path_(std::move(newest_path)),
      newest_at_(now) {}

bool CheckpointLedger::IsDue(Version version) const {
  return (every_steps_ > 0 && version.value() % every_steps_ == 0) || IsRequested();
}

void CheckpointLedger::Start(Version version) {
  started_ = version;
  Await(version);
}

void CheckpointLedger::Await(Version version) { Append(TakeRequests(), awaited_[version]); }

bool CheckpointLedger::IsAwaited(Version being_written) const {
  const auto awaited = awaited_.find(being_written);
  return IsRequested() || (awaited != awaited_.end() && !awaited->second.empty());
}

bool CheckpointLedger::IsLate(Version being_written, Version committed) const {
  const int64_t every = every_steps_ > 0 ? every_steps_ : kStepsToNone;
  return committed.value() - being_written.value() >= every * 3 / 4;
}

std::vector<CheckpointLedger::Answer> CheckpointLedger::OnWritten(Version version,
                                                                  const absl::StatusOr<std::string>& path,
                                                                  int64_t num_bytes, absl::Duration now) {
  const auto begun = begun_.extract(version);
  error_ = std::string(path.status().message());
  if (path.ok()) {
    ++num_written_;
    written_ = version;
    newest_path_ = *path;
    newest_at_ = now;
    write_seconds_ = begun ? absl::ToDoubleSeconds(now - begun.mapped()) : 0;
    num_bytes_ = num_bytes;
  } else {
    ++num_failed_;
    if (started_ == version) started_ = kNone;
  }
  auto waiting = awaited_.extract(version);
  return waiting ? std::move(waiting.mapped()) : std::vector<Answer>();
}

std::vector<CheckpointLedger::Answer> CheckpointLedger::TakeRequests() { return std::exchange(requests_, {}); }

std::vector<CheckpointLedger::Answer> CheckpointLedger::TakeAll() {
  std::vector<Answer> all = TakeRequests();
  for (auto& [version, answers] : std::exchange(awaited_, {})) Append(std::move(answers), all);
  return all;
}

void CheckpointLedger::Fill(RunStatus& status, absl::Duration now) const {
  status.newest_checkpoint = newest_path_;
  status.checkpoints_written = num_written_;
  status.checkpoint_failures = num_failed_;
  status.checkpoint_error = error_;
  status.checkpoint_step =
      newest_path_.empty() ? -1 : written_.value();  // of what is evaluated: it is none of this run's
  status.checkpoint_age_seconds = absl::ToDoubleSeconds(now - newest_at_);
  status.checkpoint_write_seconds = write_seconds_;
  status.checkpoint_bytes = num_bytes_;
  if (begun_.empty()) return;
  status.checkpoint_writing_step = begun_.begin()->first.value();
  status.checkpoint_writing_seconds = absl::ToDoubleSeconds(now - begun_.begin()->second);
}

}  // namespace eps::server
