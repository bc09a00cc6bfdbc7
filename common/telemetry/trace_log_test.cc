#include "common/telemetry/trace_log.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/telemetry/trace_file.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::std::chrono::milliseconds;

TraceLog::Time At(int milliseconds_since) { return TraceLog::Time(milliseconds(milliseconds_since)); }

std::string Path() { return testing::TempDir() + "/trace.json"; }

std::vector<TraceTrack> Written() {
  const absl::StatusOr<std::string> text = ReadFile(Path());
  EXPECT_OK(text.status());
  const absl::StatusOr<std::vector<TraceTrack>> tracks = ParseTraceLog(*text);
  EXPECT_OK(tracks.status());
  return *tracks;
}

TEST(TraceLogTest, WhatIsWrittenIsReadAgain) {
  {
    ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = Path()}));
    const int compute = log->AddTrack("compute");
    log->NameProcess("worker 2");
    const int in = log->AddTrack("in");
    log->Add(in, "pull \"h.0\"", At(1500), At(1750), "from \xff", 1 << 20, 0.125);
    log->Add(in, "pull h.1", At(1750), At(1800), /*detail=*/"", 4, 1e-9);
    log->Add(compute, "forward h.0", At(1750), At(2000));
    EXPECT_OK(log->status());
  }
  const std::vector<TraceTrack> tracks = Written();
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(tracks[0].process, "worker 2");
  EXPECT_EQ(tracks[0].thread, "compute");
  ASSERT_EQ(tracks[0].events.size(), 1u);
  EXPECT_EQ(tracks[0].events[0].name, "forward h.0");
  EXPECT_EQ(tracks[0].events[0].detail, "");
  EXPECT_EQ(tracks[0].events[0].copied_bytes, 0);
  EXPECT_EQ(tracks[1].thread, "in");
  ASSERT_EQ(tracks[1].events.size(), 2u);
  EXPECT_EQ(tracks[1].events[0].name, "pull \"h.0\"");
  EXPECT_EQ(tracks[1].events[0].detail, "from \xEF\xBF\xBD");  // no UTF-8
  EXPECT_DOUBLE_EQ(tracks[1].events[0].begin, 1.5);
  EXPECT_DOUBLE_EQ(tracks[1].events[0].end, 1.75);
  EXPECT_EQ(tracks[1].events[0].copied_bytes, 1 << 20);
  EXPECT_DOUBLE_EQ(tracks[1].events[0].copy_seconds, 0.125);
  EXPECT_EQ(tracks[1].events[1].copied_bytes, 4);
  EXPECT_DOUBLE_EQ(tracks[1].events[1].copy_seconds, 1e-9);
}

TEST(TraceLogTest, TimesAreOnTheClockOfTheTrace) {
  {
    ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = Path()}));
    log->SetClockOffset(milliseconds(-500));
    log->Add(log->AddTrack("compute"), "forward", At(1500), At(2000));
  }
  EXPECT_DOUBLE_EQ(Written()[0].events[0].begin, 1.0);
}

TEST(TraceLogTest, ATrackOfANameThatIsThereIsThatOne) {
  {
    ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = Path()}));
    const int steps = log->AddTrack("steps");
    EXPECT_NE(log->AddTrack("compute"), steps);
    log->Add(steps, "step 0", At(0), At(1));
    EXPECT_EQ(log->AddTrack("steps"), steps);
  }
  const std::vector<TraceTrack> tracks = Written();
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(tracks[0].thread, "steps");
  EXPECT_EQ(tracks[0].events.size(), 1u);
}

TEST(TraceLogTest, EachThreadHasATrackOfItsOwn) {
  {
    ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = Path()}));
    const int here = log->TrackOfThisThread("update");
    EXPECT_EQ(log->TrackOfThisThread("update"), here);
    std::thread([&] { EXPECT_NE(log->TrackOfThisThread("update"), here); }).join();
  }
  const std::vector<TraceTrack> tracks = Written();
  ASSERT_EQ(tracks.size(), 2u);
  EXPECT_EQ(tracks[0].thread, "update 1");
  EXPECT_EQ(tracks[1].thread, "update 2");
}

TEST(TraceLogTest, AFullLogTakesNoMore) {
  {
    ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = Path(), .max_events = 2}));
    const int track = log->AddTrack("compute");
    for (int i = 0; i < 5; ++i) log->Add(track, "forward", At(i), At(i + 1));
  }
  EXPECT_EQ(Written()[0].events.size(), 2u);
}

TEST(TraceLogTest, WhatAKilledProcessLeavesIsRead) {
  ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = Path()}));
  const int track = log->AddTrack("compute");
  log->Add(track, "forward", At(0), At(1));
  log->Add(track, "backward", At(1), At(2));
  log->Flush();
  EXPECT_EQ(Written()[0].events.size(), 2u);
  const std::string text = *ReadFile(Path());
  ASSERT_OK_AND_ASSIGN(const std::vector<TraceTrack> cut, ParseTraceLog(text.substr(0, text.size() - 10)));
  EXPECT_EQ(cut[0].events.size(), 1u);
}

TEST(TraceLogTest, ADiskThatIsFullIsSaidOnce) {
  ASSERT_OK_AND_ASSIGN(const auto log, TraceLog::Create({.path = "/dev/full"}));
  log->Add(log->AddTrack("compute"), "forward", At(0), At(1));
  log->Flush();
  EXPECT_THAT(log->status(), StatusIs(absl::StatusCode::kUnavailable, "/dev/full"));
  EXPECT_THAT(TraceLog::Create({.path = "/nowhere/trace.json"}),
              StatusIs(absl::StatusCode::kNotFound, "/nowhere/trace.json"));
}

TEST(TraceLogTest, WhatIsNoTraceIsRefusedByItsLine) {
  EXPECT_THAT(ParseTraceLog("{}"), StatusIs(absl::StatusCode::kInvalidArgument, "line 1"));
  EXPECT_THAT(ParseTraceLog("[\n{\"ph\":\"X\"},\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "line 2: name: missing, must be a string"));
  EXPECT_THAT(ParseTraceLog("[\nno json\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "line 2: not valid JSON at byte offset 1: invalid literal"));
  EXPECT_THAT(ParseTraceLog("[\n[1e999]\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "at byte offset 1: the number 1e999 is too large"));
  EXPECT_THAT(ParseTraceLog("[\n[]\n"), StatusIs(absl::StatusCode::kInvalidArgument, "line 2: ph: missing"));
  EXPECT_THAT(ParseTraceLog("[\n{\"ph\":\"X\",\"name\":\"a\",\"tid\":1,\"ts\":1,\"dur\":1}\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "tid 1 has no name"));
  EXPECT_THAT(ParseTraceLog("[\n{\"ph\":\"X\",\"name\":\"a\",\"tid\":7e300,\"ts\":1,\"dur\":1}\n"),
              StatusIs(absl::StatusCode::kInvalidArgument, "tid: must be a whole number"));
  const auto with_args = [](const char* args) {
    return ParseTraceLog(
        absl::StrCat("[\n{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":1,\"args\":{\"name\":\"in\"}},\n",
                     "{\"ph\":\"X\",\"name\":\"a\",\"tid\":1,\"ts\":1,\"dur\":1,\"args\":", args, "}\n"));
  };
  EXPECT_OK(with_args("{\"copied_bytes\":1,\"copy_seconds\":2}").status());
  EXPECT_THAT(with_args("{\"copied_bytes\":7e300,\"copy_seconds\":2}"),
              StatusIs(absl::StatusCode::kInvalidArgument, "line 3: args.copied_bytes: must be a whole number"));
  EXPECT_THAT(with_args("{\"copied_bytes\":1}"),
              StatusIs(absl::StatusCode::kInvalidArgument, "line 3: args.copy_seconds: missing, must be a number"));
  EXPECT_THAT(with_args("[]"), StatusIs(absl::StatusCode::kInvalidArgument, "line 3: args: must be an object"));
}

}  // namespace
}  // namespace eps
