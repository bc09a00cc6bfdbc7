#include "common/telemetry/trace_file.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

// Golden: what Perfetto reads.
TEST(TraceFileTest, TracksAreNamedAndEventsAreInMicroseconds) {
  const std::vector<TraceTrack> tracks = {
      {.process = "worker", .thread = "compute", .events = {{"forward \"h.0\"", 0.5, 0.75, "vnode 1"}}},
      {.process = "worker", .thread = "in", .events = {{"pull h.0", 0.5, 0.75, "", 4096, 0.125}}},
      {.process = "daemon", .thread = "updates", .events = {{.name = "update h.0", .begin = -0.001, .end = 0}}}};
  const auto json = nlohmann::json::parse(ToChromeTrace(tracks));
  const auto& events = json.at("traceEvents");
  ASSERT_EQ(events.size(), 2u + 3 * 2 + 3);
  EXPECT_EQ(events[0], nlohmann::json::parse(
                           R"({"ph": "M", "name": "process_name", "args": {"name": "worker"}, "pid": 1, "tid": 1})"));
  EXPECT_EQ(events[3], nlohmann::json::parse(R"({"ph": "X", "name": "forward \"h.0\"", "ts": 500000.0, "dur": 250000.0,
                                                 "pid": 1, "tid": 1, "args": {"detail": "vnode 1"}})"));
  EXPECT_EQ(events[4].at("name"), "thread_name");
  EXPECT_EQ(events[4].at("tid"), 2);
  EXPECT_EQ(events[6].at("name"), "pull h.0");
  EXPECT_EQ(events[6].at("args"), nlohmann::json::parse(R"({"copied_bytes": 4096, "copy_seconds": 0.125})"));
  EXPECT_EQ(events.back().at("pid"), 2);
  EXPECT_EQ(events.back().at("ts"), -1000.0);
  EXPECT_FALSE(events.back().contains("args"));
}

TEST(TraceFileTest, WhatWasJoinedIsReadAgain) {
  const std::vector<TraceTrack> tracks = {
      {.process = "worker 1", .thread = "compute", .events = {{"forward \"h.0\"", 0.5, 0.75, "vnode 1"}}},
      {.process = "worker 1", .thread = "in", .events = {{"pull h.0", 0.5, 0.75, "", 4096, 0.125}}},
      {.process = "daemon", .thread = "updates", .events = {{.name = "update h.0", .begin = -0.001, .end = 0}}}};
  const std::string text = ToChromeTrace(tracks);
  EXPECT_TRUE(IsChromeTrace(text));
  ASSERT_OK_AND_ASSIGN(const std::vector<TraceTrack> read, ParseChromeTrace(text));
  ASSERT_EQ(read.size(), tracks.size());
  for (size_t i = 0; i < tracks.size(); ++i) {
    EXPECT_EQ(read[i].process, tracks[i].process);
    EXPECT_EQ(read[i].thread, tracks[i].thread);
  }
  EXPECT_EQ(read[0].events[0].detail, "vnode 1");
  EXPECT_EQ(read[1].events[0].copied_bytes, 4096);
  EXPECT_DOUBLE_EQ(read[2].events[0].begin, -0.001);
  EXPECT_EQ(ToChromeTrace(read), text);
  EXPECT_OK(ParseChromeTrace(ToChromeTrace({})));
}

TEST(TraceFileTest, OtherTracesOfAllProcessesAreRefusedByLine) {
  const std::string start = R"({"displayTimeUnit":"ms","traceEvents":[)";
  EXPECT_FALSE(IsChromeTrace("[\n"));
  EXPECT_FALSE(IsChromeTrace(R"({"traceEvents":[)"));
  // On one line, as another tool writes it: no event of it would be found.
  EXPECT_FALSE(IsChromeTrace(R"({"displayTimeUnit":"ms","traceEvents":[{"ph":"X","pid":1}]})"));
  EXPECT_THAT(ParseChromeTrace("[\n]\n"), StatusIs(absl::StatusCode::kInvalidArgument, "line 1"));
  EXPECT_THAT(ParseChromeTrace(start + "\n{}\n"), StatusIs(absl::StatusCode::kInvalidArgument, "line 2: ph"));
  EXPECT_THAT(ParseChromeTrace(start + "\n" + R"({"ph":"X","name":"","tid":1,"pid":"a"})" + "\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "line 2: pid"));
  EXPECT_OK(ParseChromeTrace(start));  // cut off
}

}  // namespace
}  // namespace eps
