// Which checkpoints stand in a run's folder: which are kept, after a write that failed, a kill or damage.

#include "eps_server/checkpoint/checkpointer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/run_state.h"
#include "common/checkpoint/testing.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "eps_server/checkpoint/checkpointer_fixture.h"
#include "eps_server/checkpoint/testing.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

using nlohmann::ordered_json;

using Fixture = CheckpointerFixture;

// ---- Folders ----------------------------------------------------------------------------------------------

TEST(CheckpointerFoldersTest, NothingIsMadeBeforeTheFirstWrite) {
  const Fixture f;
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kNotFound, f.directory));
  EXPECT_EQ(f.Open()->LatestPath(), "");
  EXPECT_FALSE(std::filesystem::exists(f.directory));
}

TEST(CheckpointerFoldersTest, TheNewestStay) {
  RunConfig run = SmallRun();
  run.checkpoint.keep = 2;
  const Fixture f(run);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  for (const int64_t step : {1, 2, 4, 9}) {
    EXPECT_EQ(f.WriteAt(*checkpointer, step), f.FolderOf(step));
    EXPECT_EQ(checkpointer->LatestPath(), f.FolderOf(step));
  }
  EXPECT_EQ(Names(f.directory), (std::vector<std::string>{"latest", "step-00000004", "step-00000009"}));
}

TEST(CheckpointerFoldersTest, TheMultiplesOfKeepEveryStepsStayForGood) {
  RunConfig run = SmallRun();
  run.checkpoint = {.every_steps = 2, .keep = 2, .keep_every_steps = 4};
  const Fixture f(run);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  for (const int64_t step : {2, 4, 6, 8, 10, 12, 14}) f.WriteAt(*checkpointer, step);
  EXPECT_EQ(Names(f.directory),
            (std::vector<std::string>{"latest", "step-00000004", "step-00000008", "step-00000012", "step-00000014"}));
}

TEST(CheckpointerFoldersTest, OfSeveralBetweenWhichEveryStepWasSkippedTheNewestStaysAndCountsAsOne) {
  RunConfig run = SmallRun();
  run.checkpoint = {.every_steps = 2, .keep = 2};
  const auto names = [&run] {
    const Fixture f(run);
    const std::unique_ptr<Checkpointer> checkpointer = f.Open();
    for (const int64_t step : {2, 4, 6, 8, 10}) {  // all are skipped from the fifth on
      RunState state = StateAt(step);
      state.skipped_steps = std::max<int64_t>(0, step - 4);
      f.Write(*checkpointer, state);
    }
    return Names(f.directory);
  };
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000002", "step-00000010"}));
  run.checkpoint.keep_every_steps = 6;
  EXPECT_EQ(names(), (std::vector<std::string>{"latest", "step-00000002", "step-00000006", "step-00000010"}));
}

TEST(CheckpointerFoldersTest, KeepingOneNeverRemovesTheOneJustWritten) {
  RunConfig run = SmallRun();
  run.checkpoint.keep = 1;
  const Fixture f(run);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 9);
  f.WriteAt(*checkpointer, 3);  // the run went on from an earlier one
  EXPECT_EQ(Names(f.directory), (std::vector<std::string>{"latest", "step-00000003", "step-00000009"}));
  ASSERT_OK_AND_ASSIGN(const RunState state, f.Load());
  EXPECT_EQ(state.version, Version(3));
}

TEST(CheckpointerFoldersTest, ADamagedOneDoesNotPushAGoodOneOut) {
  RunConfig run = SmallRun();
  run.checkpoint.keep = 2;
  const Fixture f(run);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 1);
  f.WriteAt(*checkpointer, 2);
  std::filesystem::remove(f.FolderOf(2) + "/model.safetensors");
  f.WriteAt(*checkpointer, 3);
  EXPECT_EQ(Names(f.directory),
            (std::vector<std::string>{"latest", "step-00000001", "step-00000002", "step-00000003"}));
}

TEST(CheckpointerFoldersTest, WhatAKilledRunLeftIsRemovedAndWhatItCommittedStands) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  const auto committed = TreeOf(f.directory);
  std::filesystem::copy(f.FolderOf(3), f.directory + "/.tmp-step-00000005");
  std::filesystem::remove(f.directory + "/.tmp-step-00000005/manifest.json");
  ASSERT_OK(WriteFileAtomically(f.directory + "/latest.tmp.4242.0", "step-0"));
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  EXPECT_EQ(TreeOf(f.directory), committed);
  EXPECT_EQ(checkpointer->LatestPath(), f.FolderOf(3));
}

TEST(CheckpointerFoldersTest, KilledBetweenTheFolderAndLatestTheOlderIsGoneOnFromAndTheNewerReplaced) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  const std::string latest = ReadFile(f.directory + "/latest").value();
  f.WriteAt(*f.Open(), 5);
  ASSERT_OK(WriteFileAtomically(f.directory + "/latest", latest));
  ASSERT_OK_AND_ASSIGN(const RunState state, f.Load());
  EXPECT_EQ(state.version, Version(3));
  f.WriteAt(*f.Open(), 5);
  ASSERT_OK_AND_ASSIGN(const RunState again, f.Load());
  EXPECT_EQ(again.version, Version(5));
}

TEST(CheckpointerFoldersTest, WithoutAUsefulLatestTheNewestCompleteOneIsTaken) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  f.WriteAt(*checkpointer, 5);
  ASSERT_OK(WriteFileAtomically(f.directory + "/latest", "step-00000009\n"));  // dangling
  EXPECT_EQ(f.Open()->LatestPath(), f.FolderOf(5));
  ASSERT_OK_AND_ASSIGN(RunState state, f.Load());
  EXPECT_EQ(state.version, Version(5));

  std::filesystem::remove(f.directory + "/latest");
  std::filesystem::remove(f.FolderOf(5) + "/manifest.json");
  EXPECT_EQ(f.Open()->LatestPath(), f.FolderOf(3));
  ASSERT_OK_AND_ASSIGN(state, f.Load());
  EXPECT_EQ(state.version, Version(3));

  std::filesystem::remove(f.FolderOf(3) + "/config.json");
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "step-00000005/manifest.json: found nothing"));
}

// ---- Failure in the middle --------------------------------------------------------------------------------

// Files of this process cannot grow beyond `max_bytes` while it lives.
class FileLimit {
 public:
  explicit FileLimit(rlim_t max_bytes) {
    handler_ = signal(SIGXFSZ, SIG_IGN);  // an error instead
    getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = max_bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  sighandler_t handler_ = SIG_DFL;
};

TEST(CheckpointerFoldersTest, AWriteThatFailsLeavesWhatStoodBefore) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  const auto before = TreeOf(f.directory);
  const std::unique_ptr<Store> store = f.StoreAt(5);
  // Too little for the masters, for the moments, for the manifest alone.
  for (const rlim_t max_bytes : {100'000, 1'200'000, 400}) {
    const FileLimit limit(max_bytes);
    const absl::Status status = checkpointer->Write(*store, StateAt(5), {AllBlobs(f.model), [](BlobId) {}}).status();
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("checkpoint of step 5: cannot"));
  }
  EXPECT_EQ(TreeOf(f.directory), before);
  EXPECT_EQ(checkpointer->LatestPath(), f.FolderOf(3));
  EXPECT_EQ(f.WriteAt(*checkpointer, 5), f.FolderOf(5));
}

// Invariant 5 of the design: writes one checkpoint after another, the last step twice, until it is
// killed.
[[noreturn]] void WriteUntilKilled(const Fixture& f, int ready) {
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  for (;;) {
    for (const int64_t step : {1, 2, 3, 4, 5, 5}) {
      if (!checkpointer->Write(*f.StoreAt(step), StateAt(step), {AllBlobs(f.model), [](BlobId) {}}).ok()) _exit(1);
      if (write(ready, "x", 1) != 1) _exit(1);
    }
  }
}

class CheckpointerKilledTest : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(WithFrozenTensors, CheckpointerKilledTest, ::testing::Bool());

TEST_P(CheckpointerKilledTest, AtAnyMomentACommittedCheckpointIsLoaded) {
  RunConfig run = SmallRun();
  run.checkpoint.keep = 1;
  if (GetParam()) run.model.freeze = {"*.attn.*"};
  const Fixture f(run);
  for (int round = 0; round < 12; ++round) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) WriteUntilKilled(f, ready[1]);
    char byte;
    ASSERT_EQ(read(ready[0], &byte, 1), 1);
    usleep(static_cast<useconds_t>(round * 7919 % 60'000));
    kill(child, SIGKILL);
    int how = 0;
    ASSERT_EQ(waitpid(child, &how, 0), child);
    ASSERT_TRUE(WIFSIGNALED(how)) << "a Write failed";
    close(ready[0]);
    close(ready[1]);

    const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
    ASSERT_OK_AND_ASSIGN(const RunState state, f.Open()->LoadLatest(*loaded));
    ExpectSameTensors(f.model, *f.StoreAt(state.version.value()), *loaded, state.version);
    for (const std::string& name : Names(f.directory)) EXPECT_FALSE(absl::StartsWith(name, ".")) << name;
  }
}

// ---- What is frozen ---------------------------------------------------------------------------------------

RunConfig RunWithFrozen() {
  RunConfig run = SmallRun();
  run.model.freeze = {"*.wte.weight", "*.attn.*"};
  return run;
}

std::string FrozenIn(const Fixture& f, int64_t step) { return f.FolderOf(step) + "/" + kFrozenFile; }

bool AreOneFile(const Fixture& f, int64_t a, int64_t b) {
  return std::filesystem::equivalent(FrozenIn(f, a), FrozenIn(f, b));
}

// Writes into a file where it lies, as no program of this project does.
void DamageInPlace(const std::string& path) {
  ASSERT_OK_AND_ASSIGN(const FileDescriptor file, OpenFile(path, O_WRONLY));
  ASSERT_OK(WriteAt(file, path, 5000, "damage"));
}

TEST(CheckpointerFoldersTest, WhatIsFrozenIsWrittenOnceAndStaysWhileACheckpointHasIt) {
  const Fixture f(RunWithFrozen());
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  for (const int64_t step : {1, 2, 3, 3, 5}) f.WriteAt(*checkpointer, step);
  EXPECT_EQ(Names(f.directory), (std::vector<std::string>{"latest", "step-00000003", "step-00000005"}));
  EXPECT_TRUE(AreOneFile(f, 3, 5));
  EXPECT_EQ(std::filesystem::hard_link_count(FrozenIn(f, 5)), 2u);
  EXPECT_NE(ReadFile(f.FolderOf(3) + "/" + kTrainedFile), ReadFile(f.FolderOf(5) + "/" + kTrainedFile));
  for (const int64_t step : {3, 5}) EXPECT_OK(VerifyCheckpointFolder(f.FolderOf(step)));

  const std::unique_ptr<Checkpointer> resumed = f.Open();
  const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
  ASSERT_OK(resumed->LoadLatest(*loaded));
  ExpectSameTensors(f.model, *f.StoreAt(5), *loaded, Version(5));
  f.WriteAt(*resumed, 6);
  EXPECT_TRUE(AreOneFile(f, 5, 6));

  // Of a run that began anew there it is not known whether it is the same.
  f.WriteAt(*f.Open(), 7);
  EXPECT_FALSE(AreOneFile(f, 6, 7));
  EXPECT_EQ(ReadFile(FrozenIn(f, 6)), ReadFile(FrozenIn(f, 7)));
}

TEST(CheckpointerFoldersTest, WhatIsFrozenIsWrittenAnewWhereItIsNotWhatWasWritten) {
  const Fixture f(RunWithFrozen());
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 1);
  const std::string good = ReadFile(FrozenIn(f, 1)).value();
  DamageInPlace(FrozenIn(f, 1));
  // As if it was later than the clock of file times can tell.
  std::filesystem::last_write_time(FrozenIn(f, 1),
                                   std::filesystem::last_write_time(FrozenIn(f, 1)) + std::chrono::seconds(1));
  f.WriteAt(*checkpointer, 2);
  EXPECT_FALSE(AreOneFile(f, 1, 2));
  EXPECT_THAT(ReadFile(FrozenIn(f, 2)), IsOkAndHolds(good));
  EXPECT_THAT(VerifyCheckpointFolder(f.FolderOf(1)), StatusIs(absl::StatusCode::kDataLoss, kFrozenFile));
  std::filesystem::remove_all(f.directory);
  f.WriteAt(*checkpointer, 3);
  EXPECT_OK(VerifyCheckpointFolder(f.FolderOf(3)));
}

TEST(CheckpointerFoldersTest, AChangeWhileACheckpointIsWrittenIsNotTakenForWhatWasWritten) {
  for (const bool is_linked : {false, true}) {
    const Fixture f(RunWithFrozen());
    const std::unique_ptr<Checkpointer> checkpointer = f.Open();
    if (is_linked) f.WriteAt(*checkpointer, 1);
    const std::string folder = f.directory + "/.tmp-step-00000002/", file = folder + kFrozenFile;
    bool is_damaged = false;
    int64_t pieces = 0;  // of what is read back
    // Asked before each piece of the writing. A link is there from the start; what is written is looked at, and then read
    // back, behind two other files.
    const auto damage_once = [&] {
      if (is_damaged || !std::filesystem::exists(file)) return false;
      if (std::filesystem::exists(folder + kConfigFile)) ++pieces;
      const auto parts_of = [&](const char* name) {
        return NumParts(static_cast<int64_t>(std::filesystem::file_size(folder + name))) + 1;  // and its end
      };
      if (!is_linked && (pieces == 0 || pieces < parts_of(kConfigFile) + parts_of(kTrainedFile) + 2)) return false;
      const auto later = std::filesystem::last_write_time(file) + std::chrono::seconds(1);
      DamageInPlace(file);
      std::filesystem::last_write_time(file, later);
      is_damaged = true;
      return false;
    };
    ASSERT_OK(checkpointer->Write(
        *f.StoreAt(2), StateAt(2),
        {.order = AllBlobs(f.model), .captured = [](BlobId) {}, .is_awaited = nullptr, .is_cancelled = damage_once}));
    ASSERT_TRUE(is_damaged);
    // Too late for the look at it, and too early for nobody to notice: its sum is not of what the file has become.
    EXPECT_FALSE(VerifyCheckpointFolder(f.FolderOf(2)).ok());
    f.WriteAt(*checkpointer, 3);
    EXPECT_FALSE(AreOneFile(f, 2, 3));
    EXPECT_OK(VerifyCheckpointFolder(f.FolderOf(3)));
  }
}

TEST(CheckpointerFoldersTest, ALinkElsewhereInThePlaceOfWhatIsFrozenIsReadAndNotPassedOn) {
  const Fixture f(RunWithFrozen());
  f.WriteAt(*f.Open(), 1);
  std::filesystem::rename(FrozenIn(f, 1), f.dir.File("store"));
  std::filesystem::create_symlink("../../store", FrozenIn(f, 1));
  const std::unique_ptr<Checkpointer> resumed = f.Open();
  ASSERT_OK(resumed->LoadLatest(*Store::Create(f.model, f.run).value()));
  f.WriteAt(*resumed, 2);
  std::filesystem::remove(f.dir.File("store"));
  EXPECT_OK(VerifyCheckpointFolder(f.FolderOf(2)));
}

TEST(CheckpointerFoldersTest, OfCheckpointsThatShareADamagedFileAndOneThatHasItsOwnThisOneIsOffered) {
  RunConfig run = RunWithFrozen();
  run.checkpoint.keep = 4;
  const Fixture f(run);
  f.WriteAt(*f.Open(), 1);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();  // which knows nothing of the first one's file
  for (const int64_t step : {2, 3}) f.WriteAt(*checkpointer, step);
  ASSERT_TRUE(AreOneFile(f, 2, 3));
  DamageInPlace(FrozenIn(f, 2));
  EXPECT_THAT(f.Load().status(), StatusIs(absl::StatusCode::kDataLoss, "to go on with --resume from step-00000001"));
}

TEST(CheckpointerFoldersTest, DamageToWhatAllCheckpointsShareIsNamedAndNoneIsOffered) {
  const Fixture f(RunWithFrozen());
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  for (const int64_t step : {1, 2}) f.WriteAt(*checkpointer, step);
  DamageInPlace(FrozenIn(f, 1));
  const absl::Status status = f.Load().status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, FrozenIn(f, 2) + ": found sha256"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                               "there is no other whole checkpoint in " + f.directory +
                                   ": put the file back from a copy (cp onto it, with nothing that reads it: all"));
  EXPECT_THAT(VerifyCheckpointFolder(f.FolderOf(2)), StatusIs(absl::StatusCode::kDataLoss, "does not share this file"));
}

// ---- Damage -----------------------------------------------------------------------------------------------

TEST(CheckpointerFoldersTest, ADamagedFileOfAnyKindIsNamedWithWhatToDo) {
  Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  f.WriteAt(*checkpointer, 5);
  for (const std::string file : {kModelFile, kOptimizerFile, kConfigFile, kManifestFile}) {
    const std::string path = f.FolderOf(5) + "/" + file;
    const std::string good = ReadFile(path).value();
    const auto expect_refused = [&](const std::string& how) {
      const absl::Status status = f.Load().status();
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, path)) << how;
      EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                   "remove the folder " + f.FolderOf(5) + " to go on with --resume from step-00000003"))
          << how;
    };
    for (const size_t at : {size_t{0}, good.size() / 2, good.size() - 1}) {
      FlipByte(path, static_cast<int64_t>(at));
      expect_refused(absl::StrCat(file, " byte ", at));
      ASSERT_OK(WriteFileAtomically(path, good));
    }
    for (const std::string& content : {good.substr(0, good.size() - 1), std::string(), good + "x"}) {
      ASSERT_OK(WriteFileAtomically(path, content));
      expect_refused(absl::StrCat(file, " of ", content.size(), " bytes"));
    }
    std::filesystem::remove(path);
    expect_refused(file + " missing");
    std::filesystem::create_directory(path);
    expect_refused(file + " a folder");
    std::filesystem::remove(path);
    ASSERT_OK(WriteFileAtomically(path, good));
  }
  ASSERT_OK(f.Load());
}

TEST(CheckpointerFoldersTest, RemovingTheDamagedFolderGoesOnFromTheOneBefore) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  f.WriteAt(*checkpointer, 5);
  FlipByte(f.FolderOf(5) + "/model.safetensors", 5000);
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "found sha256"));
  std::filesystem::remove_all(f.FolderOf(5));
  ASSERT_OK_AND_ASSIGN(const RunState state, f.Load());
  EXPECT_EQ(state.version, Version(3));
}

TEST(CheckpointerFoldersTest, TheOnlyOneDamagedSaysSo) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  FlipByte(f.FolderOf(3) + "/optimizer.safetensors", 700);
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "there is no other whole checkpoint in " + f.directory));
}

TEST(CheckpointerFoldersTest, ADamagedOneIsNotOffered) {
  RunConfig run = SmallRun();
  run.checkpoint.keep = 3;
  const Fixture f(run);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  for (const int64_t step : {1, 2, 3}) f.WriteAt(*checkpointer, step);
  FlipByte(f.FolderOf(3) + "/model.safetensors", 5000);
  FlipByte(f.FolderOf(2) + "/model.safetensors", 5000);
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "to go on with --resume from step-00000001"));
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "first between byte 0 and 1048575"));
}

TEST(CheckpointerFoldersTest, WhatTheNextFolderReplacesIsNotKeptWhenLatestCannotBeWritten) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  f.WriteAt(*checkpointer, 5);
  std::filesystem::remove(f.directory + "/latest");
  std::filesystem::create_directory(f.directory + "/latest");
  EXPECT_THAT(checkpointer->Write(*f.StoreAt(5), StateAt(5), {AllBlobs(f.model), [](BlobId) {}}).status().ToString(),
              ::testing::HasSubstr("cannot replace"));
  EXPECT_EQ(Names(f.directory), (std::vector<std::string>{"latest", "step-00000003", "step-00000005"}));
  std::filesystem::remove(f.directory + "/latest");
  ASSERT_OK_AND_ASSIGN(const RunState state, f.Load());
  EXPECT_EQ(state.version, Version(5));
}

TEST(CheckpointerFoldersTest, ADirectoryThatVanishedIsMadeAnew) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  std::filesystem::rename(f.directory, f.dir.File("elsewhere"));
  ASSERT_OK(WriteFileAtomically(f.directory, "a file in its place"));
  const absl::Status status =
      checkpointer->Write(*f.StoreAt(4), StateAt(4), {AllBlobs(f.model), [](BlobId) {}}).status();
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("checkpoints"));
  std::filesystem::remove(f.directory);
  EXPECT_EQ(f.WriteAt(*checkpointer, 5), f.FolderOf(5));
  ASSERT_OK(f.Load());
}

TEST(CheckpointerFoldersTest, NothingIsStoredOfADamagedCheckpoint) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  FlipByte(f.FolderOf(3) + "/optimizer.safetensors", 700);
  const std::unique_ptr<Store> store = Store::Create(f.model, f.run).value();
  EXPECT_FALSE(f.Open()->LoadLatest(*store).ok());
  ExpectSameTensors(f.model, *store, *Store::Create(f.model, f.run).value(), Version(3));
}

TEST(CheckpointerFoldersTest, ARightSumOverTheWrongTensorsIsNotEnough) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  const std::string manifest_path = f.FolderOf(3) + "/manifest.json";
  const std::string text = ReadFile(manifest_path).value();
  // The moments in the masters' place, honestly summed.
  std::filesystem::copy_file(f.FolderOf(3) + "/optimizer.safetensors", f.FolderOf(3) + "/model.safetensors",
                             std::filesystem::copy_options::overwrite_existing);
  ASSERT_OK(WriteFileAtomically(manifest_path, EditManifest(text, [](ordered_json& manifest) {
                                  manifest["files"]["model.safetensors"] = manifest["files"]["optimizer.safetensors"];
                                })));
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "tensor transformer.wte.weight is missing"));
}

TEST(CheckpointerFoldersTest, AFolderUnderAnotherStepsNameIsRefused) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  std::filesystem::rename(f.FolderOf(3), f.FolderOf(6));
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "step: found 3, must be 6"));
}

}  // namespace
}  // namespace eps::server
