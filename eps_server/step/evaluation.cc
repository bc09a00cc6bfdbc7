#include "eps_server/step/evaluation.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps::server {

Evaluation::Evaluation(const EvaluationConfig& config, int64_t steps, int64_t num_rounds, Version resumed)
    : config_(config),
      steps_(steps),
      num_rounds_(num_rounds),
      newest_(resumed.value() >= steps ? resumed : Version(-1)) {
  EPS_CHECK(!config.is_on() || num_rounds >= 1);
}

bool Evaluation::IsDue(Version version) const { return version != newest_ && config_.IsDue(version.value(), steps_); }

void Evaluation::Begin(Version version, absl::Duration now) {
  EPS_CHECK(!is_on() && IsDue(version));
  version_ = newest_ = version;
  round_ = 0;
  begun_at_ = now;
  totals_ = {};
}

std::optional<int64_t> Evaluation::NextRead() {
  if (!is_on() || is_reading_ || ledger_ != nullptr || round_ == num_rounds_) return std::nullopt;
  is_reading_ = true;
  return round_;
}

void Evaluation::StartRound(std::vector<VnodeBatch> batches) {
  is_reading_ = false;
  if (!is_on()) return;
  ledger_ = std::make_unique<VnodeLedger>(StepId(version_->value()), std::move(batches));
}

Assignment Evaluation::Assign(WorkerId worker, absl::Span<const int> vnodes) {
  Assignment assignment = ledger_->Assign(worker, vnodes);
  assignment.evaluation_round = round_;
  return assignment;
}

int Evaluation::Lose(WorkerId worker) { return ledger_ == nullptr ? 0 : ledger_->Lose(worker, /*missing=*/{}); }

absl::Status Evaluation::AddRecords(WorkerId worker, Version version, int64_t round,
                                    absl::Span<const VnodeRecord> records) {
  const bool is_given_out = ledger_ != nullptr && version == *version_ && round == round_;
  if (is_given_out) return ledger_->AddRecords(worker, records);
  // Of an evaluation that was ended, or a round that another worker has finished.
  const bool is_over = version < newest_ || (version == newest_ && (!is_on() || round < round_));
  if (is_over && round >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("pass_done.evaluation_round: ", round, " of step ", version.value(), " was not given out"));
}

bool Evaluation::FinishRound() {
  if (ledger_ == nullptr || !ledger_->AllRecordsIn()) return false;
  const VnodeTotals round = ledger_->Totals();
  totals_.loss_sum += round.loss_sum;
  totals_.counted_tokens += round.counted_tokens;
  totals_.correct += round.correct;
  totals_.chosen_reward += round.chosen_reward;
  totals_.rejected_reward += round.rejected_reward;
  ledger_.reset();
  ++round_;
  return true;
}

std::optional<EvaluationReport> Evaluation::Finish(absl::Duration now) {
  if (!is_on() || round_ < num_rounds_) return std::nullopt;
  const auto share = [&](double sum) {
    if (totals_.counted_tokens == 0) return std::numeric_limits<double>::quiet_NaN();
    return sum / static_cast<double>(totals_.counted_tokens);
  };
  EvaluationReport report = {.version = *version_,
                             .loss = share(totals_.loss_sum),
                             .accuracy = share(static_cast<double>(totals_.correct)),
                             .tokens = totals_.counted_tokens,
                             .seconds = absl::ToDoubleSeconds(now - begun_at_)};
  if (totals_.counted_tokens > 0) {
    report.rewards = {.chosen = share(totals_.chosen_reward), .rejected = share(totals_.rejected_reward)};
  }
  version_.reset();
  newest_seconds_ = report.seconds;
  return report;
}

void Evaluation::Abandon() {
  version_.reset();
  ledger_.reset();
}

std::optional<EvaluationProgress> Evaluation::Progress(absl::Duration now) const {
  if (!is_on()) return std::nullopt;
  const double rounds = static_cast<double>(round_) + (ledger_ == nullptr ? 0 : ledger_->ShareOfRecords());
  return EvaluationProgress{.version = *version_,
                            .share = rounds / static_cast<double>(num_rounds_),
                            .seconds = absl::ToDoubleSeconds(now - begun_at_)};
}

double Evaluation::SecondsLeft(Version committed, int64_t end, absl::Duration now, double round_seconds) const {
  const std::optional<EvaluationProgress> progress = Progress(now);
  double each = static_cast<double>(num_rounds_) * round_seconds;
  if (newest_seconds_ > 0) {
    each = newest_seconds_;
  } else if (progress.has_value() && progress->share > 0) {
    each = progress->seconds / progress->share;
  }
  const double of_this = progress.has_value() ? each * (1 - progress->share) : 0;
  return of_this + each * static_cast<double>(NumDue(std::max(committed.value(), newest_.value() + 1), end));
}

int64_t Evaluation::NumDue(int64_t first, int64_t last) const {
  const int64_t of_start = first <= 0 && last >= 0 && config_.IsDue(0, steps_) ? 1 : 0;
  first = std::max<int64_t>(first, 1);
  if (!config_.is_on() || last < first) return of_start;
  const int64_t of_interval = last / config_.every_steps - (first - 1) / config_.every_steps;
  return of_start + of_interval + (last == steps_ && last % config_.every_steps != 0 ? 1 : 0);
}

}  // namespace eps::server
