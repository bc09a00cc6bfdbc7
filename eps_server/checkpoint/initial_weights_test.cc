#include <cstddef>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/testing.h"
#include "common/formats/model_folder_writer.h"
#include "common/formats/safetensors.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/checkpoint/testing.h"
#include "eps_server/store/store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

constexpr NewAdapters kNoNew = NewAdapters::kRefused;

// A value that names its tensor and place, exact in every dtype.
float ValueAt(const TensorSpec& tensor, int64_t i) {
  return static_cast<float>((tensor.name.size() * 7 + static_cast<size_t>(i)) % 61) / 64;
}
absl::Status FillPart(const TensorSpec& tensor, int64_t first_elem, absl::Span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] = ValueAt(tensor, first_elem + static_cast<int64_t>(i));
  return absl::OkStatus();
}

// Every tensor is as `value` says, and what lies between them is zero.
void ExpectStoreHolds(const ModelSpec& model, const Store& store,
                      const std::function<float(const TensorSpec&, int64_t)>& value) {
  for (const BlobSpec& blob : model.blobs) {
    std::vector<float> wanted(static_cast<size_t>(blob.num_elems)), found(wanted.size());
    for (const TensorSpec& tensor : blob.tensors) {
      for (int64_t i = 0; i < tensor.num_elems(); ++i) {
        wanted[static_cast<size_t>(tensor.offset_elems + i)] = value(tensor, i);
      }
    }
    EXPECT_OK(store.ReadMaster(blob.id, Version(0), 0, absl::MakeSpan(found)));
    EXPECT_EQ(found, wanted) << blob.name;
    EXPECT_EQ(store.published(blob.id), Version(-1));
  }
}

struct InitialStore {
  RunConfig run = SmallRun();
  ModelSpec model = BuildModel(run.model).value();
  std::unique_ptr<Store> store = Store::Create(model, run).value();
  TempDir dir;
};

class InitStoreTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, InitStoreTest, ::testing::Values(1, 3, 1000));

TEST_P(InitStoreTest, EveryTensorHasItsInitialValues) {
  InitialStore f;
  ASSERT_OK(InitStore(f.model, GetParam(), *f.store));
  std::vector<float> values;
  std::string of;
  ExpectStoreHolds(f.model, *f.store, [&](const TensorSpec& tensor, int64_t i) {
    if (of != tensor.name) {
      of = tensor.name;
      values.resize(static_cast<size_t>(tensor.num_elems()));
      InitTensor(tensor, f.run.model.init_seed, values.data());
    }
    return values[static_cast<size_t>(i)];
  });
}

TEST(LoadHuggingFaceTest, EveryDtypeBecomesFp32) {
  for (const std::string dtype : {"F32", "F16", "BF16"}) {
    InitialStore f;
    const std::string folder = f.dir.File("hf");
    ASSERT_OK(WriteModelFolder(folder, f.model, {.dtype = dtype}, FillPart));
    ASSERT_OK(LoadHuggingFace(folder, f.model, kNoNew, 2, *f.store)) << dtype;
    ExpectStoreHolds(f.model, *f.store, ValueAt);
  }
}

TEST(LoadHuggingFaceTest, NamesMayComeWithoutTheirPrefix) {
  InitialStore f;
  const std::string prefix = "transformer.";
  std::vector<SafetensorsEntry> entries;
  std::vector<TensorSpec> tensors;
  for (const BlobSpec& blob : f.model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      entries.push_back({.name = tensor.name.substr(prefix.size()), .dtype = "F32", .shape = tensor.shape});
      tensors.push_back(tensor);
    }
  }
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsWriter::Create(f.dir.File("model.safetensors"), entries, {}));
  for (size_t i = 0; i < tensors.size(); ++i) {
    std::vector<float> values(static_cast<size_t>(tensors[i].num_elems()));
    ASSERT_OK(FillPart(tensors[i], 0, absl::MakeSpan(values)));
    ASSERT_OK(file->Write(i, 0, {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(float)}));
  }
  ASSERT_OK(file->Finish());
  std::ofstream(f.dir.File("config.json")) << ModelConfigToJson(f.model.config);
  ASSERT_OK(LoadHuggingFace(f.dir.path(), f.model, kNoNew, 2, *f.store));
  ExpectStoreHolds(f.model, *f.store, ValueAt);
}

TEST(LoadHuggingFaceTest, AnotherShapeThanTheRunsIsNamedAndNothingIsStored) {
  InitialStore f;
  const std::string folder = f.dir.File("hf");
  ASSERT_OK(WriteModelFolder(folder, f.model, {.dtype = "F32"}, FillPart));
  RunConfig other = SmallRun(Dtype::kF32);
  other.model.context = 6;
  const ModelSpec wider = BuildModel(other.model).value();
  const std::unique_ptr<Store> store = Store::Create(wider, other).value();
  EXPECT_THAT(LoadHuggingFace(folder, wider, kNoNew, 2, *store),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       folder + "/config.json: n_positions: found 5, the run's model has 6"));
  ExpectStoreHolds(wider, *store, [](const TensorSpec&, int64_t) { return 0.0f; });
}

ModelConfig SmallLlama() {
  ModelConfig config = {.family = ModelFamily::kLlama, .num_layers = 1, .d_model = 12, .num_heads = 2, .context = 5};
  config.vocab = 10;
  config.max_positions = 9;
  config.num_kv_heads = 1;
  config.d_head = 4;
  config.d_ff = 7;
  return config;
}

TEST(LoadHuggingFaceTest, WherePositionsAreNoParametersTheContextIsTheRunsOwn) {
  TempDir dir;
  ModelConfig config = SmallLlama();
  config.context = config.max_positions;
  ASSERT_OK(WriteModelFolder(dir.File("hf"), BuildModel(config).value(), {.dtype = "F32"}, FillPart));
  RunConfig run = SmallRun(Dtype::kF32);
  run.model = SmallLlama();
  const ModelSpec model = BuildModel(run.model).value();
  const std::unique_ptr<Store> store = Store::Create(model, run).value();
  ASSERT_OK(LoadHuggingFace(dir.File("hf"), model, kNoNew, 2, *store));
  ExpectStoreHolds(model, *store, ValueAt);
}

TEST(LoadHuggingFaceTest, AnotherLlamaOrAnotherFamilyIsNamed) {
  TempDir dir;
  ASSERT_OK(WriteModelFolder(dir.File("hf"), BuildModel(SmallLlama()).value(), {.dtype = "F32"}, FillPart));
  RunConfig run = SmallRun(Dtype::kF32);
  run.model = SmallLlama();
  run.model.rotary.theta = 500;
  const std::unique_ptr<Store> store = Store::Create(BuildModel(run.model).value(), run).value();
  EXPECT_THAT(LoadHuggingFace(dir.File("hf"), BuildModel(run.model).value(), kNoNew, 2, *store),
              StatusIs(absl::StatusCode::kInvalidArgument, "rope_theta: found 10000.0, the run's model has 500.0"));
  InitialStore f;
  EXPECT_THAT(LoadHuggingFace(dir.File("hf"), f.model, kNoNew, 2, *f.store),
              StatusIs(absl::StatusCode::kInvalidArgument, "/hf/config.json: "));
}

TEST(LoadHuggingFaceTest, DropoutAndSeedAreTheRunsOwn) {
  InitialStore f;
  const std::string folder = f.dir.File("hf");
  ASSERT_OK(WriteModelFolder(folder, f.model, {.dtype = "F32"}, FillPart));
  f.model.config.residual_dropout = 0.25;
  f.model.config.init_seed = 99;
  EXPECT_OK(LoadHuggingFace(folder, f.model, kNoNew, 2, *f.store));
}

// Of weights that are trained, whose master has the value, and of frozen ones, of which the wire form is all that is kept.
TEST(LoadHuggingFaceTest, AValueThatTheWireFormCannotHoldIsRefused) {
  const std::string name = "transformer.h.1.mlp.c_fc.weight";
  for (const std::string frozen : {"", "transformer.h.1.*"}) {
    RunConfig run = SmallRun(Dtype::kF16);
    if (!frozen.empty()) run.model.freeze = {frozen};
    const ModelSpec model = BuildModel(run.model).value();
    const auto fill = [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
      EPS_RETURN_IF_ERROR(FillPart(tensor, first, values));
      if (tensor.name == name && first == 0) values[5] = 7e4f;
      return absl::OkStatus();
    };
    TempDir dir;
    ASSERT_OK(WriteModelFolder(dir.File("hf"), model, {}, fill));
    const std::unique_ptr<Store> store = Store::Create(model, run).value();
    const absl::Status status = LoadHuggingFace(dir.File("hf"), model, kNoNew, 2, *store);
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, "tensor " + name + ", element 5 at byte "));
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, ": 70000, is too large for precision.wire: FP16"));
    run.precision.wire = Dtype::kBf16;
    const std::unique_ptr<Store> wider = Store::Create(model, run).value();
    EXPECT_OK(LoadHuggingFace(dir.File("hf"), model, kNoNew, 2, *wider));
  }
}

// Of a folder that has none; those of one that has some are its tensors as all others are.
TEST(LoadHuggingFaceTest, AdaptersBeginAsTheyDoBesideTheFoldersWeights) {
  InitialStore f;
  const std::string folder = f.dir.File("hf");
  ASSERT_OK(WriteModelFolder(folder, f.model, {.dtype = "F32"}, FillPart));
  RunConfig run = SmallRun(Dtype::kF32);
  run.model.lora = {.rank = 2, .alpha = 2};
  const ModelSpec model = BuildModel(run.model).value();
  const std::unique_ptr<Store> store = Store::Create(model, run).value();
  ::testing::internal::CaptureStderr();
  ASSERT_OK(LoadHuggingFace(folder, model, NewAdapters::kTaken, 2, *store));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::HasSubstr("INFO adapters_new tensors=16\n"));
  std::vector<float> values;
  ExpectStoreHolds(model, *store, [&](const TensorSpec& tensor, int64_t i) {
    if (tensor.lora == LoraPart::kNone) return ValueAt(tensor, i);
    if (i == 0) {
      values.resize(static_cast<size_t>(tensor.num_elems()));
      InitTensor(tensor, run.model.init_seed, values.data());
    }
    return values[static_cast<size_t>(i)];
  });
}

// A folder that has changed since the RunSpec was read.
TEST(LoadHuggingFaceTest, OtherAdaptersThanTheRunsAreNamed) {
  InitialStore f;
  const std::string folder = f.dir.File("hf");
  ASSERT_OK(WriteModelFolder(folder, f.model, {.dtype = "F32"}, FillPart));
  RunConfig run = SmallRun(Dtype::kF32);
  run.model.lora = {.rank = 2, .alpha = 2};
  const ModelSpec adapted = BuildModel(run.model).value();
  const std::unique_ptr<Store> store = Store::Create(adapted, run).value();
  EXPECT_THAT(LoadHuggingFace(folder, adapted, kNoNew, 2, *store),
              StatusIs(kInvalid, folder + "/config.json: eps_lora: found null, the run's model has {"));

  std::vector<NamedTensor> tensors;
  for (const BlobSpec& blob : adapted.blobs) {
    for (const TensorSpec& tensor : blob.tensors) tensors.push_back({.name = tensor.name, .tensor = &tensor});
  }
  ASSERT_OK(WriteTensorFile(folder + "/model.safetensors", tensors, "F32", FillPart));
  std::ofstream(folder + "/config.json") << ModelConfigToJson(adapted.config);
  ::testing::internal::CaptureStderr();
  ASSERT_OK(LoadHuggingFace(folder, adapted, kNoNew, 2, *store));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), ::testing::Not(::testing::HasSubstr("adapters_new")));
  ExpectStoreHolds(adapted, *store, ValueAt);
  EXPECT_THAT(LoadHuggingFace(folder, f.model, NewAdapters::kTaken, 2, *f.store),
              StatusIs(kInvalid, "eps_lora: found {"));
  run.model.lora.dropout = 0.5;  // the run's own matter
  const ModelSpec dropped = BuildModel(run.model).value();
  EXPECT_OK(LoadHuggingFace(folder, dropped, kNoNew, 2, *Store::Create(dropped, run).value()));
  run.model.lora.rank = 3;
  const ModelSpec wider = BuildModel(run.model).value();
  const std::unique_ptr<Store> other = Store::Create(wider, run).value();
  EXPECT_THAT(LoadHuggingFace(folder, wider, NewAdapters::kTaken, 2, *other),
              StatusIs(kInvalid, R"(eps_lora: found {"alpha":2.0,"dropout":0.0,"rank":2,)"));
}

TEST(LoadHuggingFaceTest, AMissingFolderOrFileIsNamed) {
  InitialStore f;
  EXPECT_THAT(LoadHuggingFace(f.dir.File("none"), f.model, kNoNew, 2, *f.store),
              StatusIs(absl::StatusCode::kNotFound, "none/config.json"));
  std::ofstream(f.dir.File("config.json")) << ModelConfigToJson(f.model.config);
  EXPECT_THAT(LoadHuggingFace(f.dir.path(), f.model, kNoNew, 2, *f.store),
              StatusIs(absl::StatusCode::kNotFound, "model.safetensors"));
}

}  // namespace
}  // namespace eps::server
