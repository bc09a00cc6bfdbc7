#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include "common/base/file_util.h"
#include "common/run_folder/run_folder.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/report/failure.h"
#include "eps_server/report/loss_svg.h"
#include "eps_server/report/metrics_log.h"
#include "eps_server/report/summary.h"
#include "eps_server/step/expert_load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

StepReport ReportOf(int64_t step) {
  StepReport report;
  report.step = StepId(step);
  report.loss = 5.5 - 0.1 * static_cast<double>(step);
  report.wait_fraction = {{"pull", 0.25}};
  return report;
}

std::vector<int64_t> StepsIn(const std::string& path) {
  std::vector<int64_t> steps;
  const std::string text = ReadFile(path).value();
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    EXPECT_NE(end, std::string::npos);
    steps.push_back(nlohmann::json::parse(text.substr(at, end - at))["step"].get<int64_t>());
    at = end + 1;
  }
  return steps;
}

TEST(MetricsLogTest, ALineForEachStepAsItCommits) {
  TempDir dir;
  const std::string path = dir.File("metrics.jsonl");
  ASSERT_OK_AND_ASSIGN(auto log, MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/false, 0));
  log->OnCommit(ReportOf(0));
  log->OnCommit(ReportOf(1));
  log.reset();
  EXPECT_THAT(StepsIn(path), ElementsAre(0, 1));
  const auto line = nlohmann::json::parse(MetricsLine(ReportOf(3)));
  EXPECT_EQ(line["waits"]["pull"], 0.25);
  for (const char* key :
       {"loss", "learning_rate", "gradient_norm", "tokens_per_second", "model_flops", "step_seconds"}) {
    EXPECT_TRUE(line.contains(key)) << key;
  }
}

TEST(MetricsLogTest, ALineSaysOfExpertsHowEvenlyTheyAreLoaded) {
  StepReport report = ReportOf(3);
  EXPECT_FALSE(nlohmann::json::parse(MetricsLine(report)).contains("experts"));
  report.expert_load = LoadOf({3, 1, 0, 4}, {.blocks = 2, .experts = 2, .per_token = 1});
  EXPECT_EQ(nlohmann::json::parse(MetricsLine(report))["experts"],
            nlohmann::json::parse(R"({"busiest": 2.0, "busiest_block": 1, "busiest_expert": 1, "mean_busiest": 1.75,
                                      "idle": 1})"));
}

TEST(MetricsLogTest, AResumeCutsWhatIsBeyondTheCheckpointAndHalfALine) {
  TempDir dir;
  const std::string path = dir.File("metrics.jsonl");
  std::string text;
  for (int64_t step = 0; step < 5; ++step) text += MetricsLine(ReportOf(step));
  ASSERT_OK(WriteFileAtomically(path, text + "{\"step\": 2, \"lo"));
  {
    ASSERT_OK_AND_ASSIGN(const auto log, MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/false, 3));
    EXPECT_THAT(StepsIn(path), ElementsAre(0, 1, 2));
    log->OnCommit(ReportOf(3));
  }
  EXPECT_THAT(StepsIn(path), ElementsAre(0, 1, 2, 3));
}

TEST(MetricsLogTest, EvaluationsHaveAFileOfTheirOwnAndThatOfTheResumedVersionGoes) {
  TempDir dir;
  const std::string steps = dir.File("metrics.jsonl"), evaluations = dir.File("evaluations.jsonl");
  const EvaluationReport report = {.version = Version(2), .loss = 1, .accuracy = 0.25, .tokens = 8, .seconds = 3};
  {
    ASSERT_OK_AND_ASSIGN(const auto log, MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/true, 0));
    log->OnCommit(ReportOf(0));
    log->OnCommit(ReportOf(1));
    log->OnEvaluation(report);
    log->OnCommit(ReportOf(2));
  }
  EXPECT_THAT(StepsIn(steps), ElementsAre(0, 1, 2));
  const auto line = nlohmann::json::parse(ReadFile(evaluations).value());
  EXPECT_EQ(line["step"], 2);
  EXPECT_EQ(line["loss"], 1.0);
  EXPECT_EQ(line["perplexity"], std::exp(1.0));
  EXPECT_EQ(line["accuracy"], 0.25);
  EXPECT_EQ(line["tokens"], 8);
  EXPECT_EQ(line["seconds"], 3.0);
  ASSERT_OK(MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/true, 3));
  EXPECT_THAT(StepsIn(evaluations), ElementsAre(2));
  ASSERT_OK(MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/true, 2));
  EXPECT_THAT(StepsIn(evaluations), ElementsAre());
  EXPECT_THAT(StepsIn(steps), ElementsAre(0, 1));
}

TEST(MetricsLogTest, OfClassesThereIsNoPerplexity) {
  EXPECT_FALSE(nlohmann::json::parse(EvaluationLine({.loss = 1, .is_of_samples = true})).contains("perplexity"));
}

TEST(MetricsLogTest, ARunWithoutEvaluationsHasNoFileOfThem) {
  TempDir dir;
  const std::string path = dir.File("evaluations.jsonl");
  ASSERT_OK(MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/false, 0));
  EXPECT_FALSE(std::filesystem::exists(path));
  // One that did has the lines up to its checkpoint; a new one in its place none.
  ASSERT_OK(
      WriteFileAtomically(path, EvaluationLine({.version = Version(2)}) + EvaluationLine({.version = Version(4)})));
  ASSERT_OK(MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/false, 3));
  EXPECT_THAT(StepsIn(path), ElementsAre(2));
  ASSERT_OK(MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/false, 0));
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(MetricsLogTest, AResumeOfAFileWithoutAWholeLineOrWithoutAStepToKeepBeginsItAnew) {
  for (const std::string& text :
       {std::string(), std::string("{\"step\": 0, \"lo"), std::string("\n\n"),
        MetricsLine(ReportOf(7)) + MetricsLine(ReportOf(8)), std::string("no line of JSON\n")}) {
    TempDir dir;
    ASSERT_OK(WriteFileAtomically(dir.File("metrics.jsonl"), text));
    ASSERT_OK_AND_ASSIGN(auto log, MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/false, 3));
    log->OnCommit(ReportOf(3));
    log.reset();
    EXPECT_THAT(StepsIn(dir.File("metrics.jsonl")), ElementsAre(3)) << text;
  }
}

TEST(MetricsLogTest, ANewRunStartsWithAnEmptyFile) {
  TempDir dir;
  const std::string path = dir.File("metrics.jsonl");
  ASSERT_OK(WriteFileAtomically(path, MetricsLine(ReportOf(0))));
  ASSERT_OK_AND_ASSIGN(const auto log, MetricsLog::Open(RunFolder(dir.path()), /*evaluates=*/false, 0));
  EXPECT_THAT(StepsIn(path), ElementsAre());
}

TEST(MetricsLogTest, ALossThatIsNotANumberStillGivesJson) {
  StepReport report = ReportOf(0);
  report.loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(nlohmann::json::parse(MetricsLine(report))["loss"].is_null());
}

TEST(SummaryTest, HasEveryFieldOfTheContract) {
  RunStatus status;
  status.step = 2;
  status.tokens = 100;
  status.counted = "samples";
  status.seconds = 3;
  status.device_peak_bytes = 9;
  status.device_models = {"cpu A", "cpu B"};
  status.counts.model_flops = 6e12;
  status.counts.tokens = 60;
  status.wait_fraction = {{"pull", 0.125}};  // of the last steps
  status.counts.pass_seconds = 8;
  status.counts.wait_seconds = {{"pull", 4}};
  status.device_cap_bytes = 10;
  status.most_workers = 3;
  const auto summary = nlohmann::json::parse(SummaryJson(status, {5, 4}, 2));
  EXPECT_EQ(summary["steps"], 2);
  EXPECT_EQ(summary["seconds"], 5.0);
  EXPECT_EQ(summary["tokens_per_second"], 20.0);
  EXPECT_EQ(summary["counted"], "samples");
  EXPECT_EQ(summary["model_flops_per_second"], 20 * 1e11);  // as many a token as in this sitting
  EXPECT_TRUE(nlohmann::json::parse(SummaryJson(RunStatus(), {}, 2))["model_flops_per_second"].is_null());
  EXPECT_EQ(summary["loss_first"], 5.0);
  EXPECT_EQ(summary["loss_last"], 4.0);
  EXPECT_EQ(summary["loss"].size(), 2u);
  EXPECT_EQ(summary["device_cap_bytes"], 10);
  EXPECT_EQ(summary["workers"], 3);
  EXPECT_EQ(summary["device_models"], nlohmann::json::parse(R"(["cpu A", "cpu B"])"));
  EXPECT_EQ(summary["wait_fraction"]["pull"], 0.5);
  for (const char* key : {"tokens", "parameters", "trainable_parameters", "model_state_bytes", "device_peak_bytes"}) {
    EXPECT_TRUE(summary.contains(key)) << key;
  }
}

TEST(FailureTest, SaysAfterHowManyStepsAndWhyWhateverBytesThatHas) {
  const auto failure = nlohmann::json::parse(FailureJson(7, "cannot write \"a\xff\": full", /*diverged=*/false));
  EXPECT_EQ(failure,
            nlohmann::json::parse(R"({"step": 7, "failure": "cannot write \"a\uFFFD\": full", "diverged": false})"));
  EXPECT_EQ(nlohmann::json::parse(FailureJson(7, "step 7", /*diverged=*/true))["diverged"], true);
}

TEST(SummaryTest, AStepThatCountsNothingHasNoLossButTheRunHas) {
  const double nan = std::nan("");
  RunStatus status;
  status.first_loss = 5;
  status.last_loss = 4;
  const auto summary = nlohmann::json::parse(SummaryJson(status, {nan, 5, nan, 4, nan}, 0));
  EXPECT_EQ(summary["loss"], nlohmann::json::parse("[null, 5.0, null, 4.0, null]"));
  EXPECT_EQ(summary["loss_first"], 5.0);
  EXPECT_EQ(summary["loss_last"], 4.0);
  status.last_loss = nan;  // of a run that diverged
  EXPECT_TRUE(nlohmann::json::parse(SummaryJson(status, {5, nan}, 0))["loss_last"].is_null());
  EXPECT_TRUE(nlohmann::json::parse(SummaryJson(RunStatus(), {nan}, 0))["loss_first"].is_null());
}

TEST(SummaryTest, SaysWhatAStepTookAndWhatTheOneWorkersPlanSaid) {
  RunStatus status;
  status.median_step_seconds = 2.5;
  status.predicted_step_seconds = 2.25;
  status.most_workers = 1;
  const auto step = [&] { return nlohmann::json::parse(SummaryJson(status, {}, 0))["step_seconds"]; };
  EXPECT_EQ(step(), nlohmann::json::parse(R"({"median": 2.5, "predicted": 2.25})"));
  status.most_workers = 2;
  EXPECT_TRUE(step()["predicted"].is_null());
  status.most_workers = 1;
  status.predicted_step_seconds = 0;
  EXPECT_TRUE(step()["predicted"].is_null());
}

TEST(SummaryTest, HasTheLastEvaluationWhereThereIsOne) {
  RunStatus status;
  EXPECT_FALSE(nlohmann::json::parse(SummaryJson(status, {}, 0)).contains("evaluation"));
  status.evaluation = {.version = Version(7), .loss = 1.5, .accuracy = std::nan(""), .tokens = 9};
  const auto evaluation = nlohmann::json::parse(SummaryJson(status, {}, 0))["evaluation"];
  EXPECT_EQ(evaluation["step"], 7);
  EXPECT_EQ(evaluation["loss"], 1.5);
  EXPECT_TRUE(evaluation["accuracy"].is_null());
  EXPECT_EQ(evaluation["tokens"], 9);
}

TEST(MetricsLogTest, OfPreferencesALineHasRewards) {
  StepReport step = ReportOf(0);
  EXPECT_FALSE(nlohmann::json::parse(MetricsLine(step)).contains("chosen_reward"));
  step.pairs = {.accuracy = 0.75, .rewards = {.chosen = 0.25, .rejected = -0.5}};
  EvaluationReport evaluation = {.accuracy = 0.75, .is_of_samples = true};
  evaluation.rewards = step.pairs->rewards;
  RunStatus status;
  status.evaluation = evaluation;
  for (const auto& line : {nlohmann::json::parse(MetricsLine(step)), nlohmann::json::parse(EvaluationLine(evaluation)),
                           nlohmann::json::parse(SummaryJson(status, {}, 0))["evaluation"]}) {
    EXPECT_EQ(line["accuracy"], 0.75);
    EXPECT_EQ(line["chosen_reward"], 0.25);
    EXPECT_EQ(line["rejected_reward"], -0.5);
    EXPECT_EQ(line["reward_margin"], 0.75);
  }
}

TEST(SummaryTest, APathThatIsNotUtf8StillGivesJson) {
  RunStatus status;
  status.newest_checkpoint = "/out\xff/checkpoints/step-00000002";
  const auto summary = nlohmann::json::parse(SummaryJson(status, {}, 0));
  EXPECT_THAT(summary["newest_checkpoint"].get<std::string>(), HasSubstr("step-00000002"));
}

TEST(LossSvgTest, TheMeanLeavesOutWhatIsNotANumber) {
  const double nan = std::nan("");
  const std::vector<double> values = {1, nan, 3, 5};
  EXPECT_THAT(MovingMean(values, 1), ElementsAre(1, 2, 4, 4));
  EXPECT_TRUE(std::isnan(MovingMean(std::vector<double>{nan}, 3)[0]));
}

TEST(LossSvgTest, IsWholeForAnyNumberOfSteps) {
  for (const size_t steps : {0u, 1u, 2u, 3u, 1000u, 12345u}) {
    std::vector<double> losses(steps);
    for (size_t i = 0; i < steps; ++i) losses[i] = 5 / (1.0 + static_cast<double>(i) / 100);
    const std::string svg = LossSvg(losses);
    EXPECT_THAT(svg, testing::StartsWith("<svg "));
    EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
    EXPECT_THAT(svg, HasSubstr("loss (nats)"));
    EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
    EXPECT_LT(svg.size(), 100000u);
  }
  EXPECT_THAT(LossSvg(std::vector<double>{2, std::nan(""), 1}), HasSubstr("class=\"mean\""));
}

TEST(LossSvgTest, TheTitleSaysWhereLossesAreNotFinite) {
  const double nan = -std::nan(""), infinity = std::numeric_limits<double>::infinity();
  const auto title = [](const std::vector<double>& losses) {
    const std::string svg = LossSvg(losses);
    EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
    EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
    const size_t begin = svg.find("Training loss");
    return svg.substr(begin, svg.find('"', begin) - begin);
  };
  EXPECT_EQ(title({}), "Training loss");
  EXPECT_EQ(title({5.23, 3, 2}), "Training loss: 5.23 to 2 in 3 steps");
  EXPECT_EQ(title({nan, 5.23, nan, 2}), "Training loss: 5.23 to 2 in 4 steps");
  EXPECT_EQ(title({5.23, 3, infinity, nan}), "Training loss: 5.23 to 3 in 4 steps, no finite one from step 2 on");
  EXPECT_EQ(title({nan, nan}), "Training loss: no finite one in 2 steps");
}

}  // namespace
}  // namespace eps::server
