#include "eps_server/step/run_progress.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "gtest/gtest.h"

namespace eps::server {
namespace {

StepReport Report(int64_t step, double loss, double seconds) {
  StepReport report;
  report.step = StepId(step);
  report.loss = loss;
  report.gradient_norm = 3;
  report.learning_rate = 0.5;
  report.seconds = seconds;
  report.tokens = 100;
  return report;
}

RunStatus StatusOf(const RunProgress& progress, int64_t end) {
  RunStatus status;
  progress.Fill(status, end, absl::Seconds(50));
  return status;
}

TEST(RunProgressTest, GoesOnFromWhatACheckpointTold) {
  RunState state;
  state.version = Version(2);
  state.losses = {5, 4};
  state.gradient_norms = {1, 2};
  state.tokens = 200;
  state.train_seconds = 7;
  RunProgress progress(std::move(state), absl::Seconds(10));
  RunStatus status = StatusOf(progress, 10);
  EXPECT_EQ(status.step, 2);
  EXPECT_EQ(status.loss, 4);
  EXPECT_EQ(status.gradient_norm, 2);
  EXPECT_EQ(status.eta_seconds, -1);  // nothing of this sitting to tell it by
  EXPECT_EQ(status.step_age_seconds, 40);
  EXPECT_EQ(status.loss_curve.size(), 2u);
  EXPECT_EQ(status.learning_rate, -1);

  StepReport third = Report(2, 3, 2);
  third.model_flops = 12e9;
  progress.Commit(third, absl::Seconds(12));
  progress.Commit(Report(3, 2, 4), absl::Seconds(16));
  status = StatusOf(progress, 10);
  EXPECT_EQ(progress.state().version, Version(4));
  EXPECT_EQ(progress.state().train_seconds, 13);
  EXPECT_EQ(status.step, 4);
  EXPECT_EQ(status.tokens, 400);
  EXPECT_EQ(status.counts.steps, 2);  // of this sitting, as are these
  EXPECT_EQ(status.counts.tokens, 200);
  EXPECT_EQ(status.counts.skipped_steps, 0);
  EXPECT_EQ(status.seconds, 6);
  EXPECT_EQ(status.last_step_seconds, 4);
  EXPECT_EQ(status.learning_rate, 0.5);
  EXPECT_EQ(status.step_age_seconds, 34);
  EXPECT_DOUBLE_EQ(status.tokens_per_second, 200.0 / 6);
  EXPECT_DOUBLE_EQ(status.model_flops_per_second, 2e9);
  EXPECT_EQ(status.counts.model_flops, 12e9);
  EXPECT_DOUBLE_EQ(status.eta_seconds, 6 * 3);
  EXPECT_EQ(progress.last_commit(), absl::Seconds(16));

  // A step that takes longer than steps do counts as it is so far.
  progress.Fill(status, 10, absl::Seconds(50), /*waited=*/absl::Seconds(34));
  EXPECT_DOUBLE_EQ(status.tokens_per_second, 200.0 / 40);
  EXPECT_DOUBLE_EQ(status.model_flops_per_second, 0.3e9);
  EXPECT_DOUBLE_EQ(status.eta_seconds, 6 * 40 / 3.0);
}

TEST(RunProgressTest, AStepThatCountsNothingHasNoLossAndOneThatWentWrongHasOneThatIsNotFinite) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  RunProgress progress(RunState{}, absl::ZeroDuration());
  EXPECT_EQ(StatusOf(progress, 9).loss, 0);
  const auto commit = [&](double loss, double norm) {
    StepReport report = Report(progress.state().version.value(), loss, 1);
    report.gradient_norm = norm;
    progress.Commit(report, absl::Seconds(1));
  };
  commit(nan, 0);
  EXPECT_TRUE(std::isnan(StatusOf(progress, 9).loss));
  EXPECT_EQ(StatusOf(progress, 9).last_loss, std::nullopt);
  commit(5, 1);
  commit(4, 1);
  commit(nan, 0);
  EXPECT_EQ(StatusOf(progress, 9).first_loss, 5);
  EXPECT_EQ(StatusOf(progress, 9).last_loss, 4);
  EXPECT_EQ(StatusOf(progress, 9).loss, 4);
  // As a checkpoint keeps them, whose NaN is a word.
  RunProgress resumed(progress.state(), absl::ZeroDuration());
  EXPECT_EQ(StatusOf(resumed, 9).first_loss, 5);
  EXPECT_EQ(StatusOf(resumed, 9).loss, 4);
  EXPECT_EQ(StatusOf(resumed, 9).loss_curve.size(), 4u);
  EXPECT_TRUE(std::isnan(StatusOf(resumed, 9).loss_curve[3]));
  commit(nan, -1);
  EXPECT_TRUE(std::isnan(StatusOf(progress, 9).loss));
  EXPECT_TRUE(std::isnan(StatusOf(progress, 9).last_loss.value()));
}

TEST(RunProgressTest, SpeedIsThatOfTheLastTenSteps) {
  RunProgress progress(RunState{}, absl::ZeroDuration());
  progress.Commit(Report(0, 3, 1000), absl::Seconds(1000));
  for (int step = 1; step <= 10; ++step) progress.Commit(Report(step, 3, 2), absl::Seconds(1000 + 2 * step));
  EXPECT_DOUBLE_EQ(StatusOf(progress, 12).eta_seconds, 2);
}

TEST(RunProgressTest, WaitsAreThoseOfTheLastTenSteps) {
  RunProgress progress(RunState{}, absl::ZeroDuration());
  EXPECT_TRUE(StatusOf(progress, 20).wait_fraction.empty());
  for (int step = 0; step <= 10; ++step) {
    StepReport report = Report(step, 3, 1);
    // The first is forgotten; of the others the last took three times as long.
    report.pass_seconds = step == 10 ? 3 : 1;
    report.wait_fraction = {{"pull", step == 0 ? 1 : 0.25}, {"room", step == 10 ? 0.5 : 0}};
    progress.Commit(report, absl::Seconds(step));
  }
  EXPECT_DOUBLE_EQ(StatusOf(progress, 20).wait_fraction.at("pull"), 0.25);
  EXPECT_DOUBLE_EQ(StatusOf(progress, 20).wait_fraction.at("room"), 1.5 / 12);
}

TEST(RunProgressTest, CountsSkippedStepsAndThoseInARow) {
  RunProgress progress(RunState{}, absl::ZeroDuration());
  for (int step = 0; step < 5; ++step) {
    StepReport report = Report(step, 3, 1);
    report.skipped = step != 2;
    progress.Commit(report, absl::Seconds(step));
    EXPECT_EQ(progress.skipped_in_a_row(), step < 2 ? step + 1 : step - 2) << step;
  }
  EXPECT_EQ(StatusOf(progress, 5).skipped_steps, 4);
}

// The next one.
StepReport Skipped(const RunProgress& progress, double loss_scale) {
  StepReport report = Report(progress.state().version.value(), 3, 1);
  report.gradient_norm = -1;
  report.skipped = true;
  report.loss_scale = loss_scale;
  return report;
}

TEST(RunProgressTest, ARunHasDivergedOnceTwentyStepsWereSkippedThatNoLossScaleIsToBlameFor) {
  for (const bool resumes : {false, true}) {  // behind every step
    for (const auto& [first_scale, want] : {std::pair(1.0, 20), std::pair(0x1p16, 20), std::pair(0x1p24, 25)}) {
      RunProgress progress(RunState{}, absl::ZeroDuration());
      double scale = first_scale;
      int skipped = 0;
      for (; !progress.has_diverged() && skipped < 100; ++skipped, scale /= 2) {
        if (resumes) progress = RunProgress(progress.state(), absl::ZeroDuration());
        progress.Commit(Skipped(progress, scale), absl::Seconds(skipped));
      }
      EXPECT_EQ(skipped, want) << first_scale;
      progress.Commit(Report(skipped, 3, 1), absl::Seconds(100));
      EXPECT_FALSE(progress.has_diverged());
    }
  }
}

TEST(RunProgressTest, ARunThatHadDivergedMayShowThatItHasNotByTheFirstStepOfItsResume) {
  RunState state;
  state.version = Version(22);
  state.losses.assign(22, 3);
  state.gradient_norms.assign(22, -1);
  state.gradient_norms.front() = 1;
  RunProgress again(state, absl::ZeroDuration()), goes_on(state, absl::ZeroDuration());
  EXPECT_EQ(again.skipped_in_a_row(), 21);
  EXPECT_FALSE(again.has_diverged());
  again.Commit(Skipped(again, 1), absl::Seconds(1));
  EXPECT_TRUE(again.has_diverged());
  goes_on.Commit(Report(22, 3, 1), absl::Seconds(1));
  EXPECT_FALSE(goes_on.has_diverged());
  goes_on.Commit(Skipped(goes_on, 1), absl::Seconds(2));
  EXPECT_EQ(goes_on.skipped_in_a_row(), 1);
}

}  // namespace
}  // namespace eps::server
