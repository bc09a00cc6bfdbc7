#include "eps_server/report/tensorboard_log.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/base/file_util.h"
#include "common/run_folder/run_folder.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/report/tensorboard_event.pb.h"
#include "eps_server/step/expert_load.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using tensorboard::Event;
using testing::Contains;
using testing::ElementsAre;
using testing::FloatEq;
using testing::Pair;
using testing::SizeIs;

std::vector<std::string> EventFilesIn(const RunFolder& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder.tensorboard())) paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<Event> EventsIn(const std::string& path) {
  const std::string file = ReadFile(path).value();
  std::vector<Event> events;
  for (size_t at = 0; at < file.size();) {
    uint64_t num_bytes = 0;
    std::memcpy(&num_bytes, file.data() + at, sizeof(num_bytes));
    const std::string bytes = file.substr(at + 12, num_bytes);
    EXPECT_EQ(file.substr(at, num_bytes + 16), TfRecord(bytes));
    EXPECT_TRUE(events.emplace_back().ParseFromString(bytes));
    at += num_bytes + 16;
  }
  return events;
}

std::map<std::string, float> ScalarsOf(const Event& event) {
  std::map<std::string, float> scalars;
  for (const auto& value : event.summary().value()) {
    // TensorBoard passes over a point without a value, as it would be if zeros were left out.
    EXPECT_EQ(value.value_case(), tensorboard::Summary::Value::kSimpleValue) << value.tag();
    scalars[value.tag()] = value.simple_value();
  }
  return scalars;
}

StepReport DrawnReport(int64_t step) {
  StepReport report;
  report.step = StepId(step);
  report.loss = 2.5;
  report.gradient_norm = 0.75;
  report.seconds = 0.5;
  report.model_flops = 1e12;
  report.wait_fraction = {{"pull", 0.25}};
  return report;
}

// The first record of any event file that TensorFlow wrote, of whose 24 bytes these are: a double and brain.Event:2.
TEST(TfRecordTest, HasTensorFlowsChecksums) {
  const std::string record = TfRecord(std::string(24, '\0'));
  EXPECT_EQ(absl::BytesToHexString(record.substr(0, 12)), "1800000000000000a37f4b22");
  // CRC-32C's check value, of "123456789", is e3069283, which the mask makes c78ab0e5.
  EXPECT_EQ(absl::BytesToHexString(TfRecord("123456789").substr(12 + 9)), "e5b08ac7");
}

TEST(TensorboardLogTest, TellsEachStepAndEvaluationAsItHappens) {
  TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK_AND_ASSIGN(auto log, TensorboardLog::Open(folder, 0));
  log->OnCommit(DrawnReport(0));
  log->OnEvaluation({.version = Version(1), .loss = 1, .accuracy = 0.5});
  StepReport skipped = DrawnReport(1);
  skipped.gradient_norm = -1;
  skipped.pairs = {.accuracy = 0, .rewards = {.chosen = 0.25, .rejected = -0.5}};
  skipped.expert_load = LoadOf({3, 1, 0, 4}, {.blocks = 2, .experts = 2, .per_token = 1});
  log->OnCommit(skipped);
  EvaluationReport of_pairs = {.version = Version(2), .loss = 1, .is_of_samples = true};
  of_pairs.rewards = {.chosen = 1, .rejected = 3};
  log->OnEvaluation(of_pairs);
  log.reset();
  const std::vector<std::string> files = EventFilesIn(folder);
  ASSERT_THAT(files, SizeIs(1));
  const std::vector<Event> events = EventsIn(files[0]);
  ASSERT_THAT(events, SizeIs(6));
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[2].step(), 0);
  EXPECT_GT(events[2].wall_time(), 1.7e9);
  const auto step = ScalarsOf(events[2]);
  EXPECT_THAT(step, Contains(Pair("train/loss", 2.5f)));
  EXPECT_THAT(step, Contains(Pair("train/gradient_norm", 0.75f)));
  EXPECT_THAT(step, Contains(Pair("speed/model_flops_per_second", FloatEq(2e12f))));
  EXPECT_THAT(step, Contains(Pair("waits/pull", 0.25f)));
  EXPECT_EQ(events[3].step(), 1);
  EXPECT_THAT(ScalarsOf(events[3]), Contains(Pair("evaluation/accuracy", 0.5f)));
  EXPECT_THAT(ScalarsOf(events[3]), Contains(Pair("evaluation/perplexity", FloatEq(std::exp(1.0f)))));
  EXPECT_EQ(step.count("experts/idle"), 0u);
  EXPECT_TRUE(std::isnan(ScalarsOf(events[4]).at("train/gradient_norm")));
  EXPECT_THAT(ScalarsOf(events[4]), Contains(Pair("train/accuracy", 0.0f)));
  EXPECT_THAT(ScalarsOf(events[4]), Contains(Pair("experts/busiest", 2.0f)));
  EXPECT_THAT(ScalarsOf(events[4]), Contains(Pair("experts/mean_busiest", 1.75f)));
  EXPECT_THAT(ScalarsOf(events[4]), Contains(Pair("experts/idle", 1.0f)));
  EXPECT_EQ(ScalarsOf(events[5]).count("evaluation/perplexity"), 0u);
  EXPECT_EQ(step.count("train/chosen_reward"), 0u);
  EXPECT_THAT(ScalarsOf(events[4]), Contains(Pair("train/chosen_reward", 0.25f)));
  EXPECT_THAT(ScalarsOf(events[4]), Contains(Pair("train/rejected_reward", -0.5f)));
  EXPECT_THAT(ScalarsOf(events[4]), Contains(Pair("train/reward_margin", 0.75f)));
  EXPECT_THAT(ScalarsOf(events[5]), Contains(Pair("evaluation/reward_margin", -2.0f)));
}

TEST(TensorboardLogTest, AResumeBeginsAFileThatVoidsWhatIsBeyondTheCheckpoint) {
  TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK_AND_ASSIGN(auto first, TensorboardLog::Open(folder, 0));
  for (int64_t step = 0; step < 5; ++step) first->OnCommit(DrawnReport(step));
  first.reset();
  const std::string before = ReadFile(EventFilesIn(folder).at(0)).value();
  ASSERT_OK_AND_ASSIGN(auto second, TensorboardLog::Open(folder, 3));
  second->OnCommit(DrawnReport(3));
  second.reset();
  const std::vector<std::string> files = EventFilesIn(folder);
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_EQ(ReadFile(files[0]).value(), before);
  const std::vector<Event> events = EventsIn(files[1]);
  ASSERT_THAT(events, SizeIs(3));
  EXPECT_EQ(events[1].session_log().status(), tensorboard::SessionLog::START);
  EXPECT_EQ(events[1].step(), 3);
  EXPECT_EQ(events[2].step(), 3);
}

TEST(TensorboardLogTest, FilesOfARunBeforeAreRemovedAndNoOthers) {
  TempDir dir;
  const RunFolder folder(dir.path());
  EXPECT_OK(TensorboardLog::RemoveFiles(folder));  // there is none, nor a folder
  ASSERT_OK(TensorboardLog::Open(folder, 0));
  ASSERT_OK(TensorboardLog::Open(folder, 2));
  const std::string others = folder.tensorboard() + "/events.out.tfevents.1700000000.host";
  ASSERT_OK(WriteFileAtomically(others, "of somebody else"));
  EXPECT_OK(TensorboardLog::RemoveFiles(folder));
  EXPECT_THAT(EventFilesIn(folder), ElementsAre(others));
}

TEST(TensorboardLogTest, ANewFileStandsBehindAllThatAreThereWhateverTheClockSays) {
  TempDir dir;
  const RunFolder folder(dir.path());
  ASSERT_OK(MakeDirs(folder.tensorboard()));
  const std::string ahead = folder.tensorboard() + "/events.out.tfevents.9000000000000000.eps";
  ASSERT_OK(WriteFileAtomically(ahead, "of a host whose clock is ahead"));
  ASSERT_OK(TensorboardLog::Open(folder, 3));
  const std::vector<std::string> files = EventFilesIn(folder);
  ASSERT_THAT(files, SizeIs(2));
  EXPECT_EQ(files[0], ahead);
  EXPECT_THAT(EventsIn(files[1]), SizeIs(2));
}

TEST(TensorboardLogTest, AFileInTheFoldersPlaceIsAnErrorThatNamesIt) {
  TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("tensorboard"), "a file"));
  EXPECT_THAT(TensorboardLog::Open(RunFolder(dir.path()), 0).status().message(), testing::HasSubstr("tensorboard"));
}

}  // namespace
}  // namespace eps::server
