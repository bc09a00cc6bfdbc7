#include "cli/trace_files.h"

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/telemetry/trace_log.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

TEST(TraceFilesTest, FilesOfSeveralProcessesBecomeOneTraceThatBeginsAtZero) {
  std::vector<std::string> files;
  for (const char* name : {"worker 1", "daemon"}) {
    files.push_back(testing::TempDir() + "/" + name);
    ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = files.back()}));
    log->NameProcess(name);
    const int begin = files.size() == 1 ? 7 : 5;
    log->Add(log->AddTrack("steps"), "step 0", TraceLog::Time(std::chrono::seconds(begin)),
             TraceLog::Time(std::chrono::seconds(8)));
  }
  ASSERT_OK_AND_ASSIGN(const std::vector<TraceTrack> tracks, JoinTraceLogs(files));
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(tracks[0].process, "worker 1");
  EXPECT_DOUBLE_EQ(tracks[0].events[0].begin, 2);
  EXPECT_DOUBLE_EQ(tracks[1].events[0].begin, 0);
  EXPECT_DOUBLE_EQ(tracks[1].events[0].end, 3);
}

TEST(TraceFilesTest, WorkersStandByTheirNumbersAndThePredictionBehindAll) {
  std::vector<TraceTrack> tracks;
  for (const char* process : {"daemon", "worker 10", "worker 2", "worker 2", "worker, predicted", "worker 1"}) {
    tracks.push_back({.process = process, .thread = std::to_string(tracks.size()), .events = {}});
  }
  const std::string file = testing::TempDir() + "/joined.json";
  ASSERT_OK(WriteFileAtomically(file, ToChromeTrace(tracks)));
  ASSERT_OK_AND_ASSIGN(const std::vector<TraceTrack> sorted, JoinTraceLogs({file}));
  std::string order;
  for (const TraceTrack& track : sorted) order += track.thread;
  EXPECT_EQ(order, "523104");
}

TEST(TraceFilesTest, AFileThatWasJoinedIsTakenAgainAndAlone) {
  const std::string joined = testing::TempDir() + "/trace.json", of_one = testing::TempDir() + "/worker";
  ASSERT_OK(WriteFileAtomically(
      joined,
      ToChromeTrace({{.process = "worker 1", .thread = "steps", .events = {{"step 0", 0, 2}, {"step 1", 2, 3}}}})));
  ASSERT_OK_AND_ASSIGN(const std::vector<TraceTrack> tracks, JoinTraceLogs({joined}));
  ASSERT_EQ(tracks.size(), 1u);
  EXPECT_EQ(MedianStep(tracks)->seconds(), 2);
  ASSERT_OK(WriteFileAtomically(of_one, "[\n]\n"));
  EXPECT_THAT(JoinTraceLogs({of_one, joined}),
              StatusIs(absl::StatusCode::kInvalidArgument, "trace.json: is joined already, and its times begin at 0"));
}

TEST(TraceFilesTest, AFileThatIsNoTraceIsNamed) {
  const std::string file = testing::TempDir() + "/summary.json";
  ASSERT_OK(WriteFileAtomically(file, "{}"));
  EXPECT_THAT(JoinTraceLogs({file}), StatusIs(absl::StatusCode::kInvalidArgument, "summary.json: line 1"));
  EXPECT_THAT(JoinTraceLogs({file + "-gone"}), StatusIs(absl::StatusCode::kNotFound, "summary.json-gone"));
}

TraceTrack StepsAt(const std::vector<double>& begins) {
  TraceTrack track = {.process = "worker 1", .thread = "steps", .events = {}};
  for (const double begin : begins) {
    track.events.push_back(
        {.name = "step at " + std::to_string(static_cast<int>(begin)), .begin = begin, .end = begin});
  }
  return track;
}

TEST(TraceFilesTest, TheMedianStepIsOfTheFirstWorkerAndNotTheFirst) {
  const TraceTrack daemon = {
      .process = "daemon", .thread = "steps", .events = {{.name = "step 0", .begin = 0, .end = 1}}};
  // 90 and, after the first: 3, 5, 4.
  const auto step = MedianStep({daemon, StepsAt({0, 90, 93, 98, 102}), StepsAt({0, 1})});
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->name, "step at 98");
  EXPECT_EQ(step->seconds(), 4);
  EXPECT_EQ(MedianStep({StepsAt({0, 2})})->seconds(), 2);
  // An evaluation is no step, nor is what lies before it one alone; a redo belongs to its step.
  TraceTrack mixed = StepsAt({0, 1, 7, 8});
  mixed.events[2].name = "evaluation of version 2";
  EXPECT_EQ(MedianStep({mixed})->seconds(), 1);
  mixed = StepsAt({0, 1, 5, 8});
  mixed.events[2].name = mixed.events[1].name;
  EXPECT_EQ(MedianStep({mixed})->seconds(), 7);
  EXPECT_FALSE(MedianStep({daemon}).has_value());
}

TEST(TraceFilesTest, AStepThatNoOtherOneFollowsLastsUntilItsOwnEnd) {
  const auto steps = [](const std::vector<TraceEvent>& events) {
    return TraceTrack{.process = "worker 1", .thread = "steps", .events = events};
  };
  const TraceEvent evaluation = {.name = "evaluation of version 1", .begin = 5, .end = 6};
  EXPECT_EQ(MedianStep({steps({{.name = "step 0", .begin = 1, .end = 4}})})->seconds(), 3);
  // With lost vnodes that were run again.
  EXPECT_EQ(MedianStep({steps({{.name = "step 0", .begin = 0, .end = 2}, {.name = "step 0", .begin = 3, .end = 4}})})
                ->seconds(),
            4);
  // An evaluation behind each: of the second one, as the first is left out.
  const auto step = MedianStep({steps({{.name = "step 0", .begin = 0, .end = 4},
                                       evaluation,
                                       {.name = "step 1", .begin = 7, .end = 9},
                                       {.name = "evaluation of version 2", .begin = 10, .end = 11}})});
  ASSERT_TRUE(step.has_value());
  EXPECT_EQ(step->name, "step 1");
  EXPECT_EQ(step->seconds(), 2);
  // Not beside one that is followed.
  EXPECT_EQ(
      MedianStep(
          {steps({{.name = "step 0", .begin = 0, .end = 1}, {.name = "step 1", .begin = 2, .end = 9}, evaluation})})
          ->seconds(),
      2);
  EXPECT_FALSE(MedianStep({steps({evaluation})}).has_value());
  EXPECT_FALSE(MedianStep({steps({})}).has_value());
}

}  // namespace
}  // namespace eps::cli
