#include "eps_server/step/run_progress.h"

#include <cmath>
#include <cstddef>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/ids.h"
#include "common/base/median.h"
#include "common/base/status_macros.h"

namespace eps::server {
namespace {

constexpr size_t kRecentSteps = 10;   // that rates and eta_seconds look at
constexpr size_t kMedianSteps = 101;  // that median_step_seconds looks at

// A step that counted no token has no loss, but a gradient, of 0. Of one that went wrong neither is finite.
bool HasLoss(const RunState& state, size_t step) {
  return !std::isnan(state.losses[step]) || state.gradient_norms[step] < 0;
}

std::optional<double> FirstLoss(const RunState& state) {
  for (size_t step = 0; step < state.losses.size(); ++step) {
    if (HasLoss(state, step)) return state.losses[step];
  }
  return std::nullopt;
}

std::optional<double> LastLoss(const RunState& state) {
  for (size_t step = state.losses.size(); step > 0; --step) {
    if (HasLoss(state, step - 1)) return state.losses[step - 1];
  }
  return std::nullopt;
}

}  // namespace

RunProgress::RunProgress(RunState state, absl::Duration now) : state_(std::move(state)), last_commit_(now) {
  for (const double loss : state_.losses) loss_curve_.Add(loss);
  for (auto norm = state_.gradient_norms.rbegin(); norm != state_.gradient_norms.rend() && *norm < 0; ++norm) {
    ++skipped_in_a_row_;
  }
}

void RunProgress::Commit(const StepReport& report, absl::Duration now) {
  EPS_CHECK(ReadVersion(report.step) == state_.version);
  state_.version = NextVersion(report.step);
  state_.losses.push_back(report.loss);
  state_.gradient_norms.push_back(report.gradient_norm);
  state_.last_norm = report.gradient_norm;
  state_.tokens += report.tokens;
  state_.train_seconds += report.seconds;
  state_.loss_scale = report.next_loss_scale;
  state_.skipped_steps += report.skipped ? 1 : 0;
  skipped_in_a_row_ = report.skipped ? skipped_in_a_row_ + 1 : 0;
  seconds_ += report.seconds;
  ++num_steps_;
  num_tokens_ += report.tokens;
  model_flops_ += report.model_flops;
  num_skipped_ += report.skipped ? 1 : 0;
  last_commit_ = now;
  loss_curve_.Add(report.loss);
  PassTotals passes{.seconds = report.pass_seconds};
  for (const auto& [cause, share] : report.wait_fraction) passes.wait_seconds[cause] = share * report.pass_seconds;
  recent_.push_back({report.seconds, report.tokens, report.model_flops, std::move(passes)});
  if (recent_.size() > kRecentSteps) recent_.pop_front();
  step_seconds_.push_back(report.seconds);
  if (step_seconds_.size() > kMedianSteps) step_seconds_.pop_front();
  last_ = report;
}

void RunProgress::Fill(RunStatus& status, int64_t end, absl::Duration now, absl::Duration waited) const {
  status.step = state_.version.value();
  status.first_loss = FirstLoss(state_);
  status.last_loss = LastLoss(state_);
  status.loss = state_.losses.empty() ? 0 : status.last_loss.value_or(std::numeric_limits<double>::quiet_NaN());
  status.gradient_norm = state_.gradient_norms.empty() ? -1 : state_.gradient_norms.back();
  status.learning_rate = num_steps_ > 0 ? last_.learning_rate : -1;
  double seconds = 0, tokens = 0, model_flops = 0;
  PassTotals passes;
  for (const Pace& step : recent_) {
    seconds += step.seconds;
    tokens += static_cast<double>(step.tokens);
    model_flops += step.model_flops;
    passes.Add(step.passes);
  }
  status.wait_fraction = passes.Fractions();
  if (seconds > 0) {
    const bool is_late = waited > absl::ZeroDuration();
    seconds += absl::ToDoubleSeconds(waited);
    status.tokens_per_second = tokens / seconds;
    status.model_flops_per_second = model_flops / seconds;
    const auto steps = static_cast<double>(recent_.size() + (is_late ? 1 : 0));
    status.eta_seconds = static_cast<double>(end - status.step) * seconds / steps;
  }
  status.seconds = seconds_;
  status.tokens = state_.tokens;
  status.skipped_steps = state_.skipped_steps;
  status.loss_scale = state_.loss_scale.value;
  status.counts.steps = num_steps_;
  status.counts.tokens = num_tokens_;
  status.counts.model_flops = model_flops_;
  status.counts.skipped_steps = num_skipped_;
  status.last_step_seconds = last_.seconds;
  status.expert_load = last_.expert_load;
  status.pairs = last_.pairs;
  status.median_step_seconds = Median(std::vector<double>(step_seconds_.begin(), step_seconds_.end()));
  status.step_age_seconds = absl::ToDoubleSeconds(now - last_commit_);
  status.loss_curve = loss_curve_.Points();
  status.loss_curve_steps = loss_curve_.steps_per_point();
}

}  // namespace eps::server
