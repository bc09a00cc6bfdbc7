#include "eps_server/checkpoint/checkpointer.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/run_state.h"
#include "common/checkpoint/testing.h"
#include "common/formats/model_folder.h"
#include "common/formats/safetensors.h"
#include "common/model/model_spec.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/checkpoint/testing.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

using nlohmann::ordered_json;

// A run's folder, its model, and stores as they are after a number of steps.
struct Fixture {
  explicit Fixture(RunConfig of_run = SmallRun())
      : run(std::move(of_run)), model(BuildModel(run.model).value()), directory(dir.File("checkpoints")) {}

  std::unique_ptr<Checkpointer> Open() const { return Checkpointer::Create(directory, model, run).value(); }
  std::unique_ptr<Store> StoreAt(int64_t step) const {
    return FilledStore(model, run, Version(step), static_cast<uint64_t>(step));
  }
  std::string WriteAt(Checkpointer& checkpointer, int64_t step) const { return Write(checkpointer, StateAt(step)); }
  std::string Write(Checkpointer& checkpointer, const RunState& state) const {
    return checkpointer.Write(*StoreAt(state.version.value()), state, {AllBlobs(model), [](BlobId) {}}).value();
  }
  std::string FolderOf(int64_t step) const { return absl::StrCat(directory, "/step-0000000", step); }
  absl::StatusOr<RunState> Load() const {
    const std::unique_ptr<Store> store = Store::Create(model, run).value();
    return Open()->LoadLatest(*store);
  }

  TempDir dir;
  RunConfig run;
  ModelSpec model;
  std::string directory;
};

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

// ---- What is written is what is loaded --------------------------------------------------------------------

class RoundTripTest : public ::testing::TestWithParam<std::pair<Dtype, Rule>> {};

TEST_P(RoundTripTest, EveryBitComesBack) {
  const Fixture f(SmallRun(GetParam().first, GetParam().second));
  const std::unique_ptr<Store> written = f.StoreAt(7);
  const RunState state = StateAt(7);
  ASSERT_OK_AND_ASSIGN(const std::string path, f.Open()->Write(*written, state, {AllBlobs(f.model), [](BlobId) {}}));
  EXPECT_EQ(path, f.FolderOf(7));
  EXPECT_EQ(Names(path),
            (std::vector<std::string>{"config.json", "manifest.json", "model.safetensors", "optimizer.safetensors"}));

  const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
  ASSERT_OK_AND_ASSIGN(const RunState read, f.Open()->LoadLatest(*loaded, /*threads=*/4));
  EXPECT_EQ(read.version, Version(7));
  EXPECT_EQ(read.losses, state.losses);
  EXPECT_EQ(read.gradient_norms, state.gradient_norms);
  EXPECT_EQ(read.last_norm, state.last_norm);
  EXPECT_EQ(read.tokens, state.tokens);
  EXPECT_EQ(read.train_seconds, state.train_seconds);
  EXPECT_EQ(read.skipped_steps, state.skipped_steps);
  ExpectSameTensors(f.model, *written, *loaded, Version(7));
  for (const BlobSpec& blob : f.model.blobs) EXPECT_EQ(loaded->published(blob.id), Version(-1));
}

INSTANTIATE_TEST_SUITE_P(WireAndRule, RoundTripTest,
                         ::testing::Values(std::pair(Dtype::kBf16, Rule::kAdamW), std::pair(Dtype::kF32, Rule::kAdamW),
                                           std::pair(Dtype::kBf16, Rule::kSgd), std::pair(Dtype::kF32, Rule::kSgd),
                                           std::pair(Dtype::kBf16, Rule::kSgdMomentum),
                                           std::pair(Dtype::kBf16, Rule::kLion),
                                           std::pair(Dtype::kF32, Rule::kSgdMomentum)));

class NarrowMomentsTest : public ::testing::TestWithParam<MomentFormat> {};
INSTANTIATE_TEST_SUITE_P(Format, NarrowMomentsTest, ::testing::Values(MomentFormat::kBf16, MomentFormat::kFp8));

TEST_P(NarrowMomentsTest, AreWrittenInBf16AndComeBack) {
  RunConfig run = SmallRun();
  run.precision.moments = GetParam();
  const Fixture f(run);
  const std::unique_ptr<Store> written = f.StoreAt(7);
  ASSERT_OK(f.Open()->Write(*written, StateAt(7), {AllBlobs(f.model), [](BlobId) {}}));
  const std::string path = f.FolderOf(7) + "/optimizer.safetensors";
  ASSERT_OK_AND_ASSIGN(const auto moments, SafetensorsReader::Open(path));
  for (const SafetensorsEntry& entry : moments->entries()) EXPECT_EQ(entry.dtype, "BF16") << entry.name;
  const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
  ASSERT_OK(f.Open()->LoadLatest(*loaded));
  ExpectSameTensors(f.model, *written, *loaded, Version(7));
  RunConfig other = run;
  other.precision.moments = MomentFormat::kFp32;
  const absl::Status refused = Checkpointer::Create(f.directory, f.model, other).value()->LoadLatest(*loaded).status();
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, "precision.moments: was "));
  EXPECT_THAT(refused, StatusIs(absl::StatusCode::kFailedPrecondition, ", now FP32"));
}

TEST(CheckpointerTest, OfAFrozenTensorTheWireFormIsWrittenAndComesBack) {
  for (const Dtype wire : {Dtype::kBf16, Dtype::kF16, Dtype::kF32}) {
    RunConfig run = SmallRun(wire);
    run.model.freeze = {"*.wte.weight", "transformer.h.0.*", "*.attn.*"};
    if (wire == Dtype::kF16) run.precision.loss_scale = LossScaleRule();
    const Fixture f(run);
    const std::unique_ptr<Store> written = f.StoreAt(7);
    RunState state = StateAt(7);
    state.loss_scale = FirstLossScale(run.precision.loss_scale);
    ASSERT_OK(f.Open()->Write(*written, state, {AllBlobs(f.model), [](BlobId) {}}));
    ASSERT_OK_AND_ASSIGN(const auto masters, SafetensorsReader::Open(f.FolderOf(7) + "/model.safetensors"));
    ASSERT_OK_AND_ASSIGN(const auto moments, SafetensorsReader::Open(f.FolderOf(7) + "/optimizer.safetensors"));
    const absl::string_view name = DtypeName(wire);
    EXPECT_EQ(masters->Find("transformer.h.1.attn.c_attn.weight")->dtype, std::string(name));
    EXPECT_EQ(masters->Find("transformer.h.1.mlp.c_fc.weight")->dtype, "F32");
    EXPECT_EQ(masters->Find("transformer.h.1.mlp.c_fc.weight")->offset_bytes % 4, 0);
    EXPECT_EQ(moments->Find("exp_avg.transformer.h.1.attn.c_attn.weight"), nullptr);
    EXPECT_NE(moments->Find("exp_avg.transformer.h.1.mlp.c_fc.weight"), nullptr);
    const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
    ASSERT_OK(f.Open()->LoadLatest(*loaded));
    ExpectSameTensors(f.model, *written, *loaded, Version(7));
    for (const BlobSpec& blob : f.model.blobs) {
      EXPECT_EQ(loaded->Wire(blob.id, Version(7)), written->Wire(blob.id, Version(7))) << blob.name;
    }
    EXPECT_OK(ModelFolder::Open(f.FolderOf(7)));
    RunConfig other = run;
    other.model.freeze.pop_back();
    const ModelSpec other_model = BuildModel(other.model).value();
    EXPECT_THAT(Checkpointer::Create(f.directory, other_model, other).value()->LoadLatest(*loaded),
                StatusIs(absl::StatusCode::kFailedPrecondition, "model.freeze: was"));
  }
}

TEST(CheckpointerTest, TensorsHaveTheirUsualNames) {
  const Fixture f;
  const std::string folder = f.WriteAt(*f.Open(), 3);
  ASSERT_OK_AND_ASSIGN(const auto masters, SafetensorsReader::Open(folder + "/model.safetensors"));
  ASSERT_OK_AND_ASSIGN(const auto moments, SafetensorsReader::Open(folder + "/optimizer.safetensors"));
  const std::string name = "transformer.h.1.attn.c_attn.weight";
  ASSERT_NE(masters->Find(name), nullptr);
  EXPECT_EQ(masters->Find(name)->dtype, "F32");
  EXPECT_EQ(masters->Find(name)->shape, (std::vector<int64_t>{24, 72}));
  EXPECT_NE(moments->Find("exp_avg." + name), nullptr);
  EXPECT_NE(moments->Find("exp_avg_sq." + name), nullptr);
  EXPECT_EQ(moments->entries().size(), 2 * masters->entries().size());
}

TEST(CheckpointerTest, AFolderLoadsAsAHuggingFaceOne) {
  const Fixture f;
  const std::string folder = f.WriteAt(*f.Open(), 3);
  const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
  ASSERT_OK(LoadHuggingFace(folder, f.model, 1, *loaded));
  const std::unique_ptr<Store> written = f.StoreAt(3);
  std::vector<float> a(1000), b(1000);
  written->ReadMaster(BlobId(2), Version(3), 0, absl::MakeSpan(a));
  loaded->ReadMaster(BlobId(2), Version(0), 0, absl::MakeSpan(b));
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST(CheckpointerTest, WeightsThatAreNotFiniteAreNoneToBeginWith) {
  const Fixture f;
  const std::unique_ptr<Store> store = Store::Create(f.model, f.run).value();
  for (const BlobSpec& blob : f.model.blobs) {
    std::vector<float> values(static_cast<size_t>(blob.num_elems), 0.5f);
    if (blob.id == BlobId(2)) values[3] = std::numeric_limits<float>::quiet_NaN();
    store->LoadMaster(blob.id, Version(3), 0, values);
    store->Publish(blob.id, Version(3));
  }
  ASSERT_OK_AND_ASSIGN(const std::string folder,
                       f.Open()->Write(*store, StateAt(3), {AllBlobs(f.model), [](BlobId) {}}));
  const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
  const absl::Status status = LoadHuggingFace(folder, f.model, 1, *loaded);
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, folder + "/model.safetensors: tensor "));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, ", element 3 at byte "));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, ": nan, must be finite"));
}

TEST(CheckpointerTest, TheSameTensorsAreTheSameBytesInAnyOrderAndAtAnyTime) {
  const Fixture a, b;
  std::vector<BlobId> backwards = AllBlobs(b.model);
  std::reverse(backwards.begin(), backwards.end());
  RunState later = StateAt(5);
  later.train_seconds = 1e6;
  ASSERT_OK_AND_ASSIGN(const std::string path_a,
                       a.Open()->Write(*a.StoreAt(5), StateAt(5), {AllBlobs(a.model), [](BlobId) {}}));
  ASSERT_OK_AND_ASSIGN(const std::string path_b, b.Open()->Write(*b.StoreAt(5), later, {backwards, [](BlobId) {}}));
  for (const char* file : {kModelFile, kOptimizerFile, kConfigFile}) {
    EXPECT_EQ(ReadFile(absl::StrCat(path_a, "/", file)).value(), ReadFile(absl::StrCat(path_b, "/", file)).value())
        << file;
  }
}

// ---- While training goes on -------------------------------------------------------------------------------

TEST(CheckpointerTest, BlobsAreTakenInTheOrderGivenAndMayChangeOnceCaptured) {
  const Fixture f(SmallRun(Dtype::kF32));
  const std::unique_ptr<Store> store = f.StoreAt(4);
  const std::vector<BlobId> order = {BlobId(3), BlobId(0), BlobId(4), BlobId(2), BlobId(1)};
  std::vector<BlobId> seen;
  const auto captured = [&](BlobId blob) {
    seen.push_back(blob);
    // The next step's update: its result must not show.
    const ChunkState chunk = store->Chunk(blob, 0, Version(4));
    std::memset(const_cast<void*>(chunk.wire_in), 0x11, 16);
    std::memset(chunk.moment1, 0x22, 16);
  };
  ASSERT_OK(f.Open()->Write(*store, StateAt(4), {order, captured}));
  EXPECT_EQ(seen, order);
  const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
  ASSERT_OK(f.Open()->LoadLatest(*loaded));
  ExpectSameTensors(f.model, *f.StoreAt(4), *loaded, Version(4));
}

// Several blobs of two chunks, and room for one chunk: most is copied as what is before it is written.
TEST(CheckpointerTest, WithLittleRoomForCopiesTheStateIsThatOfOneStepAllTheSame) {
  RunConfig run = SmallRun();
  run.model = {.num_layers = 2, .d_model = 160, .num_heads = 2, .context = 8, .vocab = 256};
  for (const int64_t buffer_bytes : {1, 5'000'000}) {
    for (const bool awaited : {false, true}) {
      run.checkpoint.buffer_bytes = buffer_bytes;
      const Fixture f(run);
      const std::unique_ptr<Store> store = f.StoreAt(4);
      const auto captured = [&](BlobId blob) {
        const ChunkState chunk = store->Chunk(blob, 0, Version(4));
        std::memset(chunk.rest, 0x11, 16);
        std::memset(chunk.moment2, 0x22, 16);
      };
      ASSERT_OK(
          f.Open()->Write(*store, StateAt(4),
                          {.order = AllBlobs(f.model), .captured = captured, .is_awaited = [=] { return awaited; }}));
      const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
      ASSERT_OK(f.Open()->LoadLatest(*loaded));
      ExpectSameTensors(f.model, *f.StoreAt(4), *loaded, Version(4));
    }
  }
}

TEST(CheckpointerTest, AllThatFitsIsCopiedBeforeAnyFileIsTouched) {
  const Fixture f;
  size_t captured = 0;
  const auto count = [&](BlobId) {
    ++captured;
    EXPECT_FALSE(std::filesystem::exists(f.directory));
  };
  ASSERT_OK(f.Open()->Write(*f.StoreAt(4), StateAt(4), {AllBlobs(f.model), count}));
  EXPECT_EQ(captured, f.model.blobs.size());
}

TEST(CheckpointerTest, AnOrderThatLeavesABlobOutIsRefusedAndNothingChanges) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  const auto before = TreeOf(f.directory);
  for (const std::vector<BlobId>& order : {std::vector<BlobId>{},
                                           {BlobId(0), BlobId(1), BlobId(2), BlobId(3)},
                                           {BlobId(0), BlobId(1), BlobId(2), BlobId(3), BlobId(3)},
                                           {BlobId(0), BlobId(1), BlobId(2), BlobId(3), BlobId(9)}}) {
    EXPECT_THAT(checkpointer->Write(*f.StoreAt(5), StateAt(5), {order, [](BlobId) {}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "order"));
  }
  EXPECT_EQ(TreeOf(f.directory), before);
  EXPECT_EQ(checkpointer->LatestPath(), f.FolderOf(3));
}

TEST(CheckpointerTest, AStateThatNoReaderWouldTakeIsNotWritten) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  f.WriteAt(*checkpointer, 3);
  const auto before = TreeOf(f.directory);
  RunState state = StateAt(5);
  state.losses.pop_back();
  EXPECT_THAT(checkpointer->Write(*f.StoreAt(5), state, {AllBlobs(f.model), [](BlobId) {}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "losses: found an array of 4"));
  EXPECT_EQ(TreeOf(f.directory), before);
}

TEST(CheckpointerTest, AFolderThatCannotBeMadeIsNamed) {
  const Fixture f;
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  ASSERT_OK(WriteFileAtomically(f.directory, "a file in its place"));
  EXPECT_THAT(checkpointer->Write(*f.StoreAt(1), StateAt(1), {AllBlobs(f.model), [](BlobId) {}}).status().ToString(),
              ::testing::HasSubstr("checkpoints"));
}

// ---- Folders ----------------------------------------------------------------------------------------------

TEST(CheckpointerTest, NothingIsMadeBeforeTheFirstWrite) {
  const Fixture f;
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kNotFound, f.directory));
  EXPECT_EQ(f.Open()->LatestPath(), "");
  EXPECT_FALSE(std::filesystem::exists(f.directory));
}

TEST(CheckpointerTest, TheNewestStay) {
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

TEST(CheckpointerTest, TheMultiplesOfKeepEveryStepsStayForGood) {
  RunConfig run = SmallRun();
  run.checkpoint = {.every_steps = 2, .keep = 2, .keep_every_steps = 4};
  const Fixture f(run);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  for (const int64_t step : {2, 4, 6, 8, 10, 12, 14}) f.WriteAt(*checkpointer, step);
  EXPECT_EQ(Names(f.directory),
            (std::vector<std::string>{"latest", "step-00000004", "step-00000008", "step-00000012", "step-00000014"}));
}

TEST(CheckpointerTest, OfSeveralBetweenWhichEveryStepWasSkippedTheNewestStaysAndCountsAsOne) {
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

TEST(CheckpointerTest, KeepingOneNeverRemovesTheOneJustWritten) {
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

TEST(CheckpointerTest, ADamagedOneDoesNotPushAGoodOneOut) {
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

TEST(CheckpointerTest, WhatAKilledRunLeftIsRemovedAndWhatItCommittedStands) {
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

TEST(CheckpointerTest, KilledBetweenTheFolderAndLatestTheOlderIsGoneOnFromAndTheNewerReplaced) {
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

TEST(CheckpointerTest, WithoutAUsefulLatestTheNewestCompleteOneIsTaken) {
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

TEST(CheckpointerTest, AWriteThatFailsLeavesWhatStoodBefore) {
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

TEST(CheckpointerTest, KilledAtAnyMomentACommittedCheckpointIsLoaded) {
  RunConfig run = SmallRun();
  run.checkpoint.keep = 1;
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

// ---- Damage -----------------------------------------------------------------------------------------------

TEST(CheckpointerTest, ADamagedFileOfAnyKindIsNamedWithWhatToDo) {
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

TEST(CheckpointerTest, RemovingTheDamagedFolderGoesOnFromTheOneBefore) {
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

TEST(CheckpointerTest, TheOnlyOneDamagedSaysSo) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  FlipByte(f.FolderOf(3) + "/optimizer.safetensors", 700);
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "there is no other whole checkpoint in " + f.directory));
}

TEST(CheckpointerTest, ADamagedOneIsNotOffered) {
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

TEST(CheckpointerTest, WhatTheNextFolderReplacesIsNotKeptWhenLatestCannotBeWritten) {
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

TEST(CheckpointerTest, ADirectoryThatVanishedIsMadeAnew) {
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

TEST(CheckpointerTest, NothingIsStoredOfADamagedCheckpoint) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  FlipByte(f.FolderOf(3) + "/optimizer.safetensors", 700);
  const std::unique_ptr<Store> store = Store::Create(f.model, f.run).value();
  EXPECT_FALSE(f.Open()->LoadLatest(*store).ok());
  ExpectSameTensors(f.model, *store, *Store::Create(f.model, f.run).value(), Version(3));
}

TEST(CheckpointerTest, ARightSumOverTheWrongTensorsIsNotEnough) {
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

TEST(CheckpointerTest, AFolderUnderAnotherStepsNameIsRefused) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  std::filesystem::rename(f.FolderOf(3), f.FolderOf(6));
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kDataLoss, "step: found 3, must be 6"));
}

// ---- Resuming ---------------------------------------------------------------------------------------------

TEST(CheckpointerTest, AnotherRunIsRefusedByField) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  const auto before = TreeOf(f.directory);
  RunConfig other = f.run;
  other.optimizer.peak_learning_rate = 0.002;
  other.data.seed = 9;
  ASSERT_OK_AND_ASSIGN(const auto checkpointer, Checkpointer::Create(f.directory, f.model, other));
  const std::unique_ptr<Store> store = Store::Create(f.model, other).value();
  const absl::Status status = checkpointer->LoadLatest(*store).status();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, "optimizer.schedule.peak: was 0.001, now 0.002"));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kFailedPrecondition, "data.seed"));
  EXPECT_EQ(TreeOf(f.directory), before);
}

TEST(CheckpointerTest, WhatChangesNoBitsMayDiffer) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  RunConfig other = f.run;
  other.checkpoint = {.every_steps = 5, .keep = 9};
  other.relay.weight_slots = 4;
  ASSERT_OK_AND_ASSIGN(const auto checkpointer, Checkpointer::Create(f.directory, f.model, other));
  const std::unique_ptr<Store> store = Store::Create(f.model, other).value();
  EXPECT_OK(checkpointer->LoadLatest(*store));
}

TEST(CheckpointerTest, AnotherFormatIsNamed) {
  const Fixture f;
  f.WriteAt(*f.Open(), 3);
  const std::string path = f.FolderOf(3) + "/manifest.json";
  const std::string text =
      EditManifest(ReadFile(path).value(), [](ordered_json& m) { m["format"] = kManifestFormat + 1; });
  ASSERT_OK(WriteFileAtomically(path, text));
  EXPECT_THAT(f.Load(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                 absl::StrCat(path, ": format: found ", kManifestFormat + 1)));
}

TEST(CheckpointerTest, AFinishedRunIsLoadedAsFinished) {
  RunConfig run = SmallRun();
  run.steps = 5;
  const Fixture f(run);
  f.WriteAt(*f.Open(), 5);
  ASSERT_OK_AND_ASSIGN(const RunState state, f.Load());
  EXPECT_EQ(state.version.value(), run.steps);
  EXPECT_EQ(state.losses.size(), 5u);
}

}  // namespace
}  // namespace eps::server
