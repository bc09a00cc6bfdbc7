#include "cli/run_report.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/numeric/quantized.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(RunReportTest, TheStartSaysWhatIsTrainedWithWhatAndWhere) {
  const RunOutline outline = {.parameters = 10770432,
                              .trainable_parameters = 10770432,
                              .model_state_bytes = 150786048,
                              .steps = 100,
                              .tokens_per_step = 1024,
                              .samples_per_step = 16,
                              .samples = 800};
  const std::string text = StartText(outline, {.workers = 2,
                                               .device = "cpu",
                                               .threads = 1,
                                               .device_memory_bytes = 34 << 20,
                                               .out = "out/x",
                                               .resumes_from = "step-00000010"});
  EXPECT_EQ(text,
            "eps: 10.8 M parameters, 143.8 MiB of state; 100 steps of 1024 tokens; 800 samples, 2 epochs\n"
            "eps: 2 workers (cpu, 1 thread each, at most 34.0 MiB); in out/x, from step-00000010");
  RunOutline of_several = outline;
  of_several.sources = 2;
  EXPECT_THAT(StartText(of_several, {}), HasSubstr("; 800 samples\n"));
  RunOutline of_some = outline;
  of_some.trainable_parameters = 41943;
  EXPECT_THAT(StartText(of_some, {}), HasSubstr("10.8 M parameters, of which 41.9 K train, 143.8 MiB of state; "));
  of_some.frozen_format = QuantizedFormat::kMxInt8;
  EXPECT_THAT(StartText(of_some, {}),
              HasSubstr("of which 41.9 K train, frozen matrices in MXINT8, 143.8 MiB of state"));
}

class EndTest : public ::testing::Test {
 protected:
  void Summary(const std::string& text) { EXPECT_OK(WriteFileAtomically(dir_.File("summary.json"), text)); }
  TempDir dir_;
};

TEST_F(EndTest, AFinishedRunGivesItsFigures) {
  Summary(R"({"steps": 4, "steps_planned": 4, "skipped_steps": 0, "seconds": 2.5, "loss_first": 5.5, "loss_last": 2.25,
              "tokens_per_second": 1000.4, "device_peak_bytes": 1048576, "device_cap_bytes": 2097152})");
  EXPECT_THAT(EndText(dir_.path()),
              HasSubstr("done: 4 steps in 2.5 s, loss 5.500 -> 2.250, 1000 tokens/s, device 1.0 MiB of 2.0 MiB; "));
  EXPECT_THAT(EndText(dir_.path()), Not(HasSubstr("--resume")));
  Summary(R"({"steps": 4, "steps_planned": 4, "tokens_per_second": 7, "model_flops_per_second": 1.25e12})");
  EXPECT_THAT(EndText(dir_.path()), HasSubstr(", 7 tokens/s, 1.25 TFLOP/s of the model; "));
  Summary(R"({"steps": 4, "steps_planned": 4, "tokens_per_second": 7, "counted": "samples"})");
  EXPECT_THAT(EndText(dir_.path()), HasSubstr(", 7 samples/s; "));
}

TEST_F(EndTest, TheLastEvaluationIsTold) {
  Summary(R"({"steps": 4, "steps_planned": 4, "loss_first": 5.5, "loss_last": 2.25, "evaluation": {"loss": 2.5}})");
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("loss 5.500 -> 2.250, evaluation loss 2.500, "));
  Summary(R"({"steps": 4, "steps_planned": 4, "loss_first": 5.5, "loss_last": 2.25, "evaluation": {"loss": null}})");
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("-> 2.250, evaluation loss not finite, "));
}

TEST_F(EndTest, ARunThatLeftNoCheckpointSaysSo) {
  Summary(R"({"steps": 4, "steps_planned": 4, "newest_checkpoint": ""})");
  EXPECT_THAT(EndText(dir_.path()),
              HasSubstr("; there is no checkpoint (checkpoint.last); summary.json and loss.svg are"));
  Summary(R"({"steps": 4, "steps_planned": 4, "newest_checkpoint": "step-00000004"})");
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("; summary.json, loss.svg and checkpoints are in "));
}

TEST_F(EndTest, AStoppedRunSaysSoAndHowToGoOn) {
  Summary(R"({"steps": 4, "steps_planned": 9, "loss_first": 5.5, "loss_last": 2.25})");
  // A process that was killed before it could write `latest` has left it all the same.
  ASSERT_OK(MakeDirs(dir_.File("checkpoints/step-00000004")));
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("stopped after step 4 of 9"));
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("step-00000004; go on with --resume"));
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr("4 of 9 steps were done"));
}

TEST_F(EndTest, ARunThatHasDoneAllOfItsStepsSaysWhereItEndedAndNothingOfGoingOn) {
  Summary(R"({"steps": 4, "steps_planned": 4, "loss_last": 2.25, "tokens": 4096, "parameters": 100,
              "trainable_parameters": 7})");
  EXPECT_THAT(FinishedText(dir_.path()), HasSubstr("4 of 4 steps were done, loss 2.250; it left no checkpoint"));
  ASSERT_OK(MakeDirs(dir_.File("checkpoints/step-00000004")));
  ASSERT_OK(WriteFileAtomically(dir_.File("checkpoints/latest"), "step-00000004\n"));
  const std::string text = FinishedText(dir_.path()), checkpoint = dir_.File("checkpoints/step-00000004");
  EXPECT_EQ(text, "the run in " + dir_.path() +
                      " has ended: 4 of 4 steps were done, loss 2.250; the newest checkpoint is " + checkpoint);
  EXPECT_EQ(NotRunningText(dir_.path()), text);
  const nlohmann::json want = {{"state", "finished"},
                               {"step", "4"},
                               {"steps", "4"},
                               {"loss", 2.25},
                               {"tokens", "4096"},
                               {"parameters", "100"},
                               {"trainable_parameters", "7"},
                               {"newest_checkpoint", checkpoint}};
  EXPECT_EQ(nlohmann::json::parse(FinishedJson(dir_.path())), want);
}

TEST_F(EndTest, OfARunThatWasKilledTheLastWholeLineOfItsMetricsTells) {
  const std::string first = R"({"step":0,"loss":5.5})"
                            "\n",
                    second = R"({"step":41,"loss":2.25})"
                             "\n";
  const std::string filler = std::string(100000, 'x') + "\n";  // more than is read
  for (const std::string& rest : {std::string(), std::string(R"({"step":42,"lo)")}) {
    ASSERT_OK(WriteFileAtomically(dir_.File("metrics.jsonl"), filler + first + second + rest));
    EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr(": 42 steps were done, loss 2.250; there is no checkpoint"));
    const nlohmann::json want = {{"state", "not_running"}, {"step", "42"}, {"loss", 2.25}, {"newest_checkpoint", ""}};
    EXPECT_EQ(nlohmann::json::parse(NotRunningJson(dir_.path())), want);
  }
  // Of a sitting before it.
  Summary(R"({"steps": 4, "steps_planned": 90, "loss_last": 5.25})");
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr(": 42 of 90 steps were done, loss 2.250; "));
  EXPECT_EQ(FinishedJson(dir_.path()), "");
  Summary(R"({"steps": 42, "steps_planned": 90, "loss_last": 5.25})");
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr(": 42 of 90 steps were done, loss 5.250; "));
}

TEST_F(EndTest, ARunThatFailedSaysWhy) {
  ASSERT_OK(WriteFileAtomically(dir_.File("failure.json"), R"({"step": 1, "failure": "step 1: the gradient\u001b"})"));
  EXPECT_EQ(nlohmann::json::parse(NotRunningJson(dir_.path())),
            (nlohmann::json{{"state", "failed"}, {"failure", "step 1: the gradient\x1b"}, {"newest_checkpoint", ""}}));
  ASSERT_OK(WriteFileAtomically(dir_.File("metrics.jsonl"), R"({"step":0,"loss":5.517})"
                                                            "\n"));
  EXPECT_EQ(NotRunningText(dir_.path()),
            "the run in " + dir_.path() +
                " has failed: step 1: the gradient?; 1 step was done, loss 5.517; there is no checkpoint");
  ASSERT_OK(MakeDirs(dir_.File("checkpoints/step-00000001")));
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr("step-00000001, from which --resume goes on once that is mended"));
  EXPECT_TRUE(HasFailed(dir_.path()));
  // All steps, and not the end: its last checkpoint could not be written, say.
  Summary(R"({"steps": 1, "steps_planned": 1, "loss_last": 5.517})");
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr(" has failed: "));
  EXPECT_EQ(nlohmann::json::parse(NotRunningJson(dir_.path()))["state"], "failed");
}

TEST_F(EndTest, ARunThatDivergedIsNotToldToResume) {
  ASSERT_OK(MakeDirs(dir_.File("checkpoints/step-00000008")));
  const auto told = [&](const char* member) {
    EXPECT_OK(WriteFileAtomically(dir_.File("failure.json"),
                                  absl::StrCat(R"({"step": 9, "failure": "step 9: the loss")", member, "}")));
    return std::vector<std::string>{NewestCheckpointText(dir_.path()), NotRunningText(dir_.path())};
  };
  for (const std::string& text : told(R"(, "diverged": true)")) {
    EXPECT_THAT(text, HasSubstr("step-00000008; --resume would fail again: eps branch goes on from it"));
    EXPECT_THAT(text, Not(HasSubstr("mended")));
  }
  for (const char* member : {"", R"(, "diverged": false)", R"(, "diverged": 1)"}) {
    for (const std::string& text : told(member)) EXPECT_THAT(text, Not(HasSubstr("eps branch"))) << member;
  }
}

TEST_F(EndTest, AFailureThatCannotBeReadIsNone) {
  for (const char* text : {"", "[1", "[]", "{}", R"({"step": 1, "failure": 7})"}) {
    ASSERT_OK(WriteFileAtomically(dir_.File("failure.json"), text));
    EXPECT_FALSE(HasFailed(dir_.path())) << text;
    EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr("no daemon runs for")) << text;
  }
}

TEST_F(EndTest, OfARunWithoutAWholeLineNothingIsSaid) {
  for (const char* metrics : {"", "\n", "{\"step\":0", "[1]\n", "{\"step\":\"1\"}\n"}) {
    ASSERT_OK(WriteFileAtomically(dir_.File("metrics.jsonl"), metrics));
    EXPECT_THAT(NotRunningText(dir_.path()), Not(HasSubstr("done"))) << metrics;
    EXPECT_EQ(NotRunningJson(dir_.path()), "") << metrics;
  }
}

TEST_F(EndTest, AnyOtherRunHasNotFinished) {
  for (const char* summary : {R"({"steps": 4, "steps_planned": 9})", R"({"steps": 4})", "{}", "[1"}) {
    Summary(summary);
    EXPECT_EQ(FinishedText(dir_.path()), "") << summary;
    EXPECT_EQ(FinishedJson(dir_.path()), "") << summary;
  }
}

TEST_F(EndTest, SkippedStepsAndALossThatIsNoNumberAreNamed) {
  Summary(R"({"steps": 4, "steps_planned": 4, "skipped_steps": 3, "loss_first": 5.5, "loss_last": null})");
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("loss 5.500 -> not finite"));
  EXPECT_THAT(EndWarnings(dir_.path()), ElementsAre(HasSubstr("3 steps were skipped, as the gradient was not finite"),
                                                    HasSubstr("the loss of the last step is not finite")));
  Summary(R"({"steps": 4, "steps_planned": 4, "skipped_steps": 0, "loss_first": 5.5, "loss_last": 2.5})");
  EXPECT_THAT(EndWarnings(dir_.path()), IsEmpty());
  Summary(R"({"steps": 0, "steps_planned": 4, "loss_first": null, "loss_last": null})");
  EXPECT_THAT(EndWarnings(dir_.path()), IsEmpty());
}

TEST_F(EndTest, ALossScaleThatFindsItsPlaceIsNoReasonToLowerTheRate) {
  const std::string line = R"({"step": 0, "loss": 2, "skipped": true, "loss_scale": 65536, "tokens": 8})";
  const auto end = [&](const std::string& last) {
    EXPECT_OK(WriteFileAtomically(dir_.File("metrics.jsonl"), line + "\n" + last + "\n"));
    return EndWarnings(dir_.path());
  };
  Summary(R"({"steps": 120, "steps_planned": 120, "skipped_steps": 99, "loss_first": 5.5, "loss_last": 2})");
  const char* found = R"({"step": 119, "loss": 2, "skipped": false, "loss_scale": 1, "tokens": 8})";
  EXPECT_THAT(end(found),
              ElementsAre("the loss scale of FP16 was too large in 99 steps, which were skipped and halved it"));
  const std::string lost = R"({"step": 119, "loss": 2, "skipped": true, "loss_scale": 0.5, "tokens": 8})";
  EXPECT_THAT(end(absl::StrCat(found, "\n", lost)), ElementsAre(Not(HasSubstr("lower optimizer")))) << "it has grown";
  EXPECT_THAT(end(absl::StrCat(lost, "\n", lost)),
              ElementsAre(HasSubstr("the last step is among them, with a scale of 0.5: give "
                                    "precision.loss_scale.initial a smaller one, lower optimizer.schedule.peak, or "
                                    "warm up longer")));
}

TEST_F(EndTest, WhereNoTokenWasCountedThereIsNoLossThatCouldBeFinite) {
  Summary(R"({"steps": 1, "steps_planned": 1, "tokens": 0, "loss_first": null, "loss_last": null})");
  EXPECT_THAT(EndWarnings(dir_.path()), ElementsAre(HasSubstr("no token of any step was counted")));
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("loss none -> none"));
  EXPECT_THAT(FinishedText(dir_.path()), HasSubstr("loss none"));
  Summary(R"({"steps": 1, "steps_planned": 1, "tokens": 8, "loss_first": null, "loss_last": null})");
  EXPECT_THAT(EndWarnings(dir_.path()), ElementsAre(HasSubstr("is not finite")));
}

TEST_F(EndTest, OfAKilledRunWhoseLastStepCountedNothingNoLossIsSaid) {
  ASSERT_OK(WriteFileAtomically(dir_.File("metrics.jsonl"), R"({"step": 4, "loss": null, "tokens": 0})"
                                                            "\n"));
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr("5 steps were done; "));
  EXPECT_THAT(NotRunningJson(dir_.path()), Not(HasSubstr("loss")));
}

TEST_F(EndTest, ARunWithoutAStepHasNoLoss) {
  Summary(R"({"steps": 0, "steps_planned": 4, "seconds": 1, "loss_first": null, "loss_last": null})");
  EXPECT_THAT(EndText(dir_.path()), HasSubstr("stopped after step 0 of 4 in 1.0 s; "));
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr("0 of 4 steps were done; "));
  EXPECT_THAT(NotRunningJson(dir_.path()), Not(HasSubstr("loss")));
}

TEST_F(EndTest, WhatCannotBeReadIsNoReport) {
  EXPECT_EQ(EndText(dir_.path()), "");
  Summary("[1");
  EXPECT_EQ(EndText(dir_.path()), "");
  EXPECT_THAT(NotRunningText(dir_.path()), HasSubstr("there is no checkpoint"));
  EXPECT_THAT(NotRunningText(dir_.File("nowhere")), HasSubstr("there is no run in"));
}

}  // namespace
}  // namespace eps::cli
