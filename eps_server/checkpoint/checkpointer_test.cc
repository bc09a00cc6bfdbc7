#include "eps_server/checkpoint/checkpointer.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/checkpoint_tensors.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/run_state.h"
#include "common/checkpoint/testing.h"
#include "common/formats/model_folder.h"
#include "common/formats/safetensors.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/numeric/quantized.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "eps_server/checkpoint/checkpoint_folder.h"
#include "eps_server/checkpoint/checkpointer_fixture.h"
#include "eps_server/checkpoint/testing.h"
#include "eps_server/store/store.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps::server {
namespace {

using nlohmann::ordered_json;

using Fixture = CheckpointerFixture;

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
    ASSERT_OK_AND_ASSIGN(const auto masters, SafetensorsReader::Open(f.FolderOf(7) + "/" + kTrainedFile));
    ASSERT_OK_AND_ASSIGN(const auto frozen, SafetensorsReader::Open(f.FolderOf(7) + "/" + kFrozenFile));
    ASSERT_OK_AND_ASSIGN(const auto moments, SafetensorsReader::Open(f.FolderOf(7) + "/optimizer.safetensors"));
    EXPECT_FALSE(std::filesystem::exists(f.FolderOf(7) + "/" + kModelFile));
    const absl::string_view name = DtypeName(wire);
    EXPECT_EQ(frozen->Find("transformer.h.1.attn.c_attn.weight")->dtype, std::string(name));
    EXPECT_EQ(frozen->Find("transformer.h.1.mlp.c_fc.weight"), nullptr);
    EXPECT_EQ(masters->Find("transformer.h.1.mlp.c_fc.weight")->dtype, "F32");
    EXPECT_EQ(masters->Find("transformer.h.1.attn.c_attn.weight"), nullptr);
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

TEST(CheckpointerTest, QuantizedTensorsAreWrittenIn16BitsAndComeBackToTheByte) {
  for (const auto& [wire, format] : {std::pair(Dtype::kBf16, QuantizedFormat::kMxInt8),
                                     {Dtype::kBf16, QuantizedFormat::kNf4},
                                     {Dtype::kF16, QuantizedFormat::kMxInt8},
                                     {Dtype::kF16, QuantizedFormat::kNf4},
                                     {Dtype::kF32, QuantizedFormat::kMxInt8}}) {
    RunConfig run = SmallRun(wire);
    run.model.freeze = {"*.wte.weight", "transformer.h.0.*", "*.attn.*"};
    run.model.frozen_format = format;
    if (wire == Dtype::kF16) run.precision.loss_scale = LossScaleRule();
    const Fixture f(run);
    const std::unique_ptr<Store> written = f.StoreAt(7);
    RunState state = StateAt(7);
    state.loss_scale = FirstLossScale(run.precision.loss_scale);
    ASSERT_OK(f.Open()->Write(*written, state, {AllBlobs(f.model), [](BlobId) {}}));
    ASSERT_OK_AND_ASSIGN(const auto frozen, SafetensorsReader::Open(f.FolderOf(7) + "/" + kFrozenFile));
    EXPECT_EQ(frozen->Find("transformer.h.1.attn.c_attn.weight")->dtype, "BF16");
    EXPECT_EQ(frozen->Find("transformer.h.1.attn.c_attn.bias")->dtype, std::string(DtypeName(wire)));
    EXPECT_EQ(frozen->Find("transformer.wte.weight")->dtype, std::string(DtypeName(wire)));
    const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
    ASSERT_OK(f.Open()->LoadLatest(*loaded));
    ExpectSameTensors(f.model, *written, *loaded, Version(7));
    for (const BlobSpec& blob : f.model.blobs) {
      EXPECT_EQ(loaded->Wire(blob.id, Version(7)), written->Wire(blob.id, Version(7))) << blob.name;
    }
    EXPECT_OK(ModelFolder::Open(f.FolderOf(7)));
    RunConfig other = run;
    other.model.frozen_format = std::nullopt;
    const ModelSpec other_model = BuildModel(other.model).value();
    EXPECT_THAT(
        Checkpointer::Create(f.directory, other_model, other).value()->LoadLatest(*loaded),
        StatusIs(absl::StatusCode::kFailedPrecondition, absl::StrCat("precision.frozen: was ", NameOf(format))));
  }
}

TEST(CheckpointerTest, AdaptersComeBackAlsoWhereTheyAreFrozenAsOfAnEvaluation) {
  RunConfig run = SmallRun();
  run.model.lora = {.rank = 2, .alpha = 4, .targets = {"c_attn", "mlp.c_proj"}};
  const Fixture f(run);
  const std::unique_ptr<Store> written = f.StoreAt(7);
  const std::string folder = f.WriteAt(*f.Open(), 7);
  ASSERT_OK_AND_ASSIGN(const auto masters, SafetensorsReader::Open(folder + "/" + kTrainedFile));
  ASSERT_OK_AND_ASSIGN(const auto frozen_masters, SafetensorsReader::Open(folder + "/" + kFrozenFile));
  ASSERT_OK_AND_ASSIGN(const auto moments, SafetensorsReader::Open(folder + "/optimizer.safetensors"));
  const std::string name = "transformer.h.1.attn.c_attn.";
  EXPECT_EQ(masters->entries().size(), 2u * 2 * 2);
  EXPECT_EQ(masters->Find(name + "lora_B.weight")->dtype, "F32");
  EXPECT_EQ(frozen_masters->Find(name + "weight")->dtype, "BF16");
  EXPECT_EQ(moments->entries().size(), 2u * 2 * 2 * 2);  // of two blocks' two products two tensors, two of each
  EXPECT_EQ(ModelFolder::Open(folder).value()->model().config.lora, run.model.lora);
  const std::unique_ptr<Store> loaded = Store::Create(f.model, run).value();
  ASSERT_OK(f.Open()->LoadLatest(*loaded));
  ExpectSameTensors(f.model, *written, *loaded, Version(7));

  RunConfig evaluated = SmallRun(Dtype::kBf16, Rule::kSgd);
  evaluated.model = run.model;
  evaluated.model.freeze = {"*", "!transformer.ln_f.bias"};
  const ModelSpec model = BuildModel(evaluated.model).value();
  const std::unique_ptr<Store> store = Store::Create(model, evaluated).value();
  ASSERT_OK_AND_ASSIGN(const Manifest manifest, ReadManifestOfWholeWeights(folder, /*work=*/nullptr));
  ASSERT_OK(LoadTensors(folder, model, manifest, LoadWhat::kMasters, /*threads=*/2, *store));
  const auto values_of = [&](const ModelSpec& of, const Store& in, const std::string& tensor_name) {
    std::vector<float> values;
    for (const BlobSpec& blob : of.blobs) {
      for (const TensorSpec& tensor : blob.tensors) {
        if (tensor.name != tensor_name) continue;
        values.resize(static_cast<size_t>(tensor.num_elems()));
        EXPECT_OK(in.ReadMaster(blob.id, Version(7), tensor.offset_elems, absl::MakeSpan(values)));
      }
    }
    return values;
  };
  EXPECT_EQ(values_of(model, *store, name + "weight"), values_of(f.model, *written, name + "weight"));
  const std::vector<float> trained = values_of(f.model, *written, name + "lora_B.weight");
  const std::vector<float> frozen = values_of(model, *store, name + "lora_B.weight");
  ASSERT_EQ(frozen.size(), 72u * 2);
  for (size_t i = 0; i < frozen.size(); ++i) EXPECT_EQ(frozen[i], ToFloat(ToBf16(trained[i]))) << i;

  RunConfig other = run;
  other.model.lora.alpha = 5;
  EXPECT_THAT(Checkpointer::Create(f.directory, f.model, other).value()->LoadLatest(*loaded),
              StatusIs(absl::StatusCode::kFailedPrecondition, "model.lora.alpha: was 4, now 5"));
}

// Makes it a checkpoint as they were until format 7: all weights in one file.
void ToOneFile(const std::string& folder, const ModelSpec& model, const RunConfig& run) {
  const std::vector<WeightFile> files = WeightFiles(model, run.precision.wire, WeightLayout::kFrozenApart);
  const WeightFile whole = WeightFiles(model, run.precision.wire, WeightLayout::kOneFile).front();
  const auto in = [&](absl::string_view name) { return absl::StrCat(folder, "/", name); };
  ASSERT_OK_AND_ASSIGN(const auto writer, SafetensorsWriter::Create(in(kModelFile), whole.entries, {}));
  size_t next = 0;
  for (const WeightFile& file : files) {
    ASSERT_OK_AND_ASSIGN(const auto reader, SafetensorsReader::Open(in(file.name)));
    for (const SafetensorsEntry& entry : file.entries) {
      ASSERT_OK(writer->Write(next++, 0, reader->Data(*reader->Find(entry.name))));
    }
  }
  ASSERT_OK(writer->Finish());
  ASSERT_OK_AND_ASSIGN(Manifest manifest, ReadManifest(folder));
  for (const char* name : {kTrainedFile, kFrozenFile, kIndexFile}) {
    std::filesystem::remove(in(name));
    manifest.files.erase(name);
  }
  manifest.files[kModelFile] = SumFile(in(kModelFile)).value();
  ASSERT_OK(WriteFileAtomically(
      in(kManifestFile), EditManifest(ManifestToJson(manifest), [](auto& object) { ToOlderFormat(object, 7); })));
}

TEST(CheckpointerTest, OneThatHasWhatIsFrozenInTheSameFileIsLoadedToo) {
  RunConfig run = SmallRun();
  run.model.freeze = {"*.attn.*", "*.wte.weight"};
  const Fixture f(run);
  const std::string folder = f.WriteAt(*f.Open(), 3);
  ToOneFile(folder, f.model, run);
  const std::unique_ptr<Checkpointer> checkpointer = f.Open();
  const std::unique_ptr<Store> loaded = Store::Create(f.model, run).value();
  ASSERT_OK(checkpointer->LoadLatest(*loaded));
  ExpectSameTensors(f.model, *f.StoreAt(3), *loaded, Version(3));
  EXPECT_EQ(Names(f.FolderOf(3)), (std::vector<std::string>{kConfigFile, kManifestFile, kModelFile, kOptimizerFile}));
  f.WriteAt(*checkpointer, 5);
  EXPECT_EQ(Names(f.FolderOf(5)), (std::vector<std::string>{kConfigFile, kManifestFile, kTrainedFile, kFrozenFile,
                                                            kIndexFile, kOptimizerFile}));
  ASSERT_OK(checkpointer->LoadLatest(*Store::Create(f.model, run).value()));
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
  ASSERT_OK(LoadHuggingFace(folder, f.model, NewAdapters::kRefused, 1, *loaded));
  const std::unique_ptr<Store> written = f.StoreAt(3);
  std::vector<float> a(1000), b(1000);
  EXPECT_OK(written->ReadMaster(BlobId(2), Version(3), 0, absl::MakeSpan(a)));
  EXPECT_OK(loaded->ReadMaster(BlobId(2), Version(0), 0, absl::MakeSpan(b)));
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

TEST(CheckpointerTest, WeightsThatAreNotFiniteAreNoneToBeginWith) {
  const Fixture f;
  const std::unique_ptr<Store> store = Store::Create(f.model, f.run).value();
  for (const BlobSpec& blob : f.model.blobs) {
    std::vector<float> values(static_cast<size_t>(blob.num_elems), 0.5f);
    if (blob.id == BlobId(2)) values[3] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_OK(store->LoadMaster(blob.id, Version(3), 0, values));
    store->Publish(blob.id, Version(3));
  }
  ASSERT_OK_AND_ASSIGN(const std::string folder,
                       f.Open()->Write(*store, StateAt(3), {AllBlobs(f.model), [](BlobId) {}}));
  const std::unique_ptr<Store> loaded = Store::Create(f.model, f.run).value();
  const absl::Status status = LoadHuggingFace(folder, f.model, NewAdapters::kRefused, 1, *loaded);
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
    const ChunkState chunk = *store->Chunk(blob, 0, Version(4));
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
        const ChunkState chunk = *store->Chunk(blob, 0, Version(4));
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
