#include "common/checkpoint/grow_model.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/checkpoint_tensors.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/testing.h"
#include "common/formats/safetensors.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr GrowRule kCopy = GrowRule::kCopy, kZeroGated = GrowRule::kZeroGated;

// ---- which blocks ----

std::string Text(const std::vector<GrownBlock>& blocks) {
  std::string text;
  for (const GrownBlock& block : blocks) {
    absl::StrAppend(&text, text.empty() ? "" : " ", block.source,
                    !block.inserted       ? ""
                    : block.rule == kCopy ? "c"
                                          : "z");
  }
  return text;
}

TEST(GrownBlocksTest, InsertedOnesComeBehindTheirBlockInTheirOrder) {
  const auto of = [](std::vector<Insertion> insertions) { return Text(InsertBlocks(3, insertions).value()); };
  EXPECT_EQ(of({{0, kCopy}}), "0 0c 1 2");
  EXPECT_EQ(of({{2, kZeroGated}}), "0 1 2 2z");
  EXPECT_EQ(of({{1, kZeroGated}, {0, kCopy}, {1, kCopy}}), "0 0c 1 1z 1c 2");
}

TEST(GrownBlocksTest, EvenlyEachBlockIsFollowedByAsManyAsAnyOtherOrOneFewer) {
  EXPECT_EQ(Text(SpreadBlocks(3, 6, kZeroGated).value()), "0 0z 1 1z 2 2z");
  EXPECT_EQ(Text(SpreadBlocks(4, 6, kCopy).value()), "0 0c 1 2 2c 3");
  EXPECT_EQ(Text(SpreadBlocks(2, 7, kCopy).value()), "0 0c 0c 0c 1 1c 1c");
}

TEST(GrownBlocksTest, OfABranchTheyAreThoseThatThereAre) { EXPECT_EQ(Text(SameBlocks(3)), "0 1 2"); }

TEST(GrownBlocksTest, StackedAllBlocksComeAgainOnTop) {
  EXPECT_EQ(Text(StackBlocks(3, 6).value()), "0 1 2 0c 1c 2c");
  EXPECT_EQ(Text(StackBlocks(3, 5).value()), "0 1 2 0c 1c");
}

TEST(GrownBlocksTest, WhatMakesNoDeeperModelIsRefused) {
  EXPECT_THAT(InsertBlocks(3, {}), StatusIs(kInvalid, "no block"));
  EXPECT_THAT(InsertBlocks(3, {{{3, kCopy}}}), StatusIs(kInvalid, "behind block 3: the model has blocks 0 to 2"));
  EXPECT_THAT(InsertBlocks(3, {{{-1, kCopy}}}), StatusIs(kInvalid, "behind block -1"));
  EXPECT_THAT(SpreadBlocks(3, 3, kCopy), StatusIs(kInvalid, "layers: 3, must be more than the 3"));
  EXPECT_THAT(StackBlocks(3, 2), StatusIs(kInvalid, "layers: 2, must be more than the 3"));
  for (const char* text : {"", "COPY", "3", "3:", ":COPY", "x:COPY", "3:copy", "3:COPY ", "3:COPY:COPY"}) {
    EXPECT_THAT(ParseInsertion(text), StatusIs(kInvalid, "must be AFTER:COPY or AFTER:ZERO_GATED")) << text;
  }
  EXPECT_EQ(ParseInsertion("11:ZERO_GATED").value().after, 11);
  EXPECT_EQ(ParseInsertion("0:COPY").value().rule, kCopy);
}

// ---- a checkpoint ----

using Values = std::map<std::string, std::vector<float>>;

Values ReadAll(const std::string& path) {
  Values values;
  const auto file = SafetensorsReader::Open(path).value();
  for (const SafetensorsEntry& entry : file->entries()) {
    int64_t num_elems = 1;
    for (const int64_t dim : entry.shape) num_elems *= dim;
    std::vector<float>& tensor = values[entry.name];
    tensor.resize(static_cast<size_t>(num_elems));
    EXPECT_OK(file->ReadFloats(entry, absl::MakeSpan(tensor)));
  }
  return values;
}

Values ReadWeights(const std::string& folder) {
  Values values;
  for (const std::string name : {kModelFile, kTrainedFile, kFrozenFile}) {
    if (std::filesystem::exists(folder + "/" + name)) values.merge(ReadAll(folder + "/" + name));
  }
  return values;
}

class GrowCheckpointTest : public ::testing::Test {
 protected:
  // A checkpoint whose every tensor has values of its own. wte has more than a piece.
  std::string Write(const RunConfig& run, const RunState& state) {
    return Write(run, state, LayoutOf(BuildModel(run.model).value()));
  }
  std::string Write(const RunConfig& run, const RunState& state, WeightLayout layout) {
    const CheckpointDirectory directory(dir_.File("run/checkpoints"));
    const std::string folder = directory.StartWriting(state.version).value();
    const ModelSpec model = BuildModel(run.model).value();
    const std::vector<WeightFile> files = WeightFiles(model, run.precision.wire, layout);
    for (const WeightFile& file : files) WriteTensors(absl::StrCat(folder, "/", file.name), file.entries);
    if (files.size() > 1) {
      EXPECT_OK(WriteFileAtomically(folder + "/" + kIndexFile, WeightIndex(files)));
    }
    WriteTensors(folder + "/" + kOptimizerFile, MomentEntries(model, run));
    EXPECT_OK(WriteFileAtomically(folder + "/" + kConfigFile, ModelConfigToJson(run.model)));
    Manifest manifest{.run = run, .state = state, .files = {}};
    for (const absl::string_view name : SummedFiles(layout)) {
      manifest.files[std::string(name)] = SumFile(absl::StrCat(folder, "/", name)).value();
    }
    EXPECT_OK(WriteFileAtomically(folder + "/" + kManifestFile, ManifestToJson(manifest)));
    EXPECT_OK(directory.FinishWriting(state.version));
    return directory.FolderOf(state.version);
  }
  static void WriteTensors(const std::string& path, const std::vector<SafetensorsEntry>& entries) {
    const auto writer = SafetensorsWriter::Create(path, entries, {{"format", "pt"}}).value();
    for (size_t i = 0; i < entries.size(); ++i) {
      int64_t num_elems = 1;
      for (const int64_t dim : entries[i].shape) num_elems *= dim;
      const size_t elem_bytes = entries[i].dtype == "F32" ? 4 : 2;
      std::vector<uint16_t> values(static_cast<size_t>(num_elems) * elem_bytes / 2);
      for (size_t e = 0; e < values.size(); ++e) values[e] = static_cast<uint16_t>(0x3c00 + (i * 37 + e) % 251);
      EXPECT_OK(writer->Write(i, 0, {reinterpret_cast<const std::byte*>(values.data()), values.size() * 2}));
    }
    EXPECT_OK(writer->Finish());
  }
  static RunConfig Run() {
    RunConfig run = SmallRun();
    run.model = {.num_layers = 3, .d_model = 64, .num_heads = 2, .context = 8, .vocab = 6000};
    return run;
  }
  std::string grown_folder() const { return dir_.File("grown/checkpoints/step-00000004"); }
  absl::StatusOr<Manifest> Grow(const std::string& folder, const std::vector<GrownBlock>& blocks,
                                const std::vector<FieldOverride>& overrides = {}) {
    return GrowCheckpoint(folder, blocks, overrides, dir_.File("grown"));
  }
  absl::StatusOr<Manifest> Branch(const std::string& folder, const std::vector<FieldOverride>& overrides) {
    return GrowCheckpoint(folder, SameBlocks(3), overrides, dir_.File("branch"));
  }

  TempDir dir_;
};

bool IsZero(const std::vector<float>& values) {
  for (const float value : values) {
    if (value != 0) return false;
  }
  return true;
}

TEST_F(GrowCheckpointTest, EveryTensorAndMomentIsThatOfItsBlock) {
  const std::string folder = Write(Run(), StateAt(4));
  const std::vector<GrownBlock> blocks = InsertBlocks(3, {{{0, kCopy}, {2, kZeroGated}}}).value();  // 0 0c 1 2 2z
  ASSERT_OK_AND_ASSIGN(const Manifest grown, Grow(folder, blocks));
  EXPECT_EQ(grown.run.model.num_layers, 5);
  EXPECT_OK(VerifyCheckpointFolder(grown_folder()));
  EXPECT_THAT(FindCheckpointFolder(dir_.File("grown")), IsOkAndHolds(grown_folder()));
  const Values was = ReadWeights(folder), now = ReadWeights(grown_folder());
  const Values moments_was = ReadAll(folder + "/" + kOptimizerFile);
  const Values moments = ReadAll(grown_folder() + "/" + kOptimizerFile);
  EXPECT_EQ(now.size(), was.size() + 2 * 12);
  EXPECT_EQ(moments.size(), 2 * now.size());
  const int sources[] = {0, 0, 1, 2, 2};
  int zeros = 0;
  for (const auto& [name, values] : now) {
    std::string source = name;
    int block = -1;
    if (absl::StartsWith(name, "transformer.h.")) {
      block = name[14] - '0';
      source[14] = static_cast<char>('0' + sources[block]);
    }
    const bool is_zero = block == 4 && absl::StrContains(name, ".c_proj.");
    zeros += is_zero ? 1 : 0;
    EXPECT_EQ(IsZero(values), is_zero) << name;
    if (!is_zero) {
      EXPECT_EQ(values, was.at(source)) << name;
    }
    for (const char* moment : {"exp_avg.", "exp_avg_sq."}) {
      if (block == 4) {
        EXPECT_TRUE(IsZero(moments.at(moment + name))) << name;
      } else {
        EXPECT_EQ(moments.at(moment + name), moments_was.at(moment + source)) << name;
      }
    }
  }
  EXPECT_EQ(zeros, 4);  // two products, each with its bias
  EXPECT_THAT(grown.state.updates,
              ElementsAre(std::pair("h.0", 3), std::pair("h.1", 3), std::pair("h.2", 3), std::pair("h.3", 3),
                          std::pair("h.4", 0), std::pair("ln_f", 3), std::pair("wpe", 3), std::pair("wte", 3)));
  // What it goes on with.
  ASSERT_OK_AND_ASSIGN(const RunConfig run, LoadRunConfig(dir_.File("grown/run.textproto"), {}));
  EXPECT_THAT(DifferencesThatMatter(grown.run, run), IsEmpty());
  ASSERT_OK_AND_ASSIGN(const Manifest read, ReadManifest(grown_folder()));
  EXPECT_EQ(read.run, grown.run);
  EXPECT_EQ(read.state.updates, grown.state.updates);
  EXPECT_EQ(read.state.losses, StateAt(4).losses);
}

TEST_F(GrowCheckpointTest, NarrowMomentsStayBf16) {
  RunConfig was = Run();
  was.precision.moments = MomentFormat::kFp8;
  const std::string folder = Write(was, StateAt(4));
  ASSERT_OK_AND_ASSIGN(const Manifest grown, Grow(folder, InsertBlocks(3, {{{1, kCopy}}}).value()));
  EXPECT_EQ(grown.run.precision.moments, MomentFormat::kFp8);
  ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsReader::Open(grown_folder() + "/" + kOptimizerFile));
  for (const SafetensorsEntry& entry : file->entries()) EXPECT_EQ(entry.dtype, "BF16") << entry.name;
  const Values was_moments = ReadAll(folder + "/" + kOptimizerFile),
               moments = ReadAll(grown_folder() + "/" + kOptimizerFile);
  const std::string name = "exp_avg_sq.transformer.h.1.mlp.c_fc.weight";
  EXPECT_FALSE(IsZero(moments.at(name)));
  EXPECT_EQ(moments.at("exp_avg_sq.transformer.h.2.mlp.c_fc.weight"), was_moments.at(name));
}

TEST_F(GrowCheckpointTest, CountsOfUpdatesGoWithTheirBlocks) {
  RunState state = StateAt(4);
  state.updates = {{"wte", 3}, {"wpe", 3}, {"ln_f", 3}, {"h.0", 3}, {"h.1", 2}, {"h.2", 1}};
  const std::string folder = Write(Run(), state);
  ASSERT_OK_AND_ASSIGN(const Manifest grown, Grow(folder, StackBlocks(3, 5).value()));
  EXPECT_EQ(grown.state.updates,
            (std::map<std::string, int64_t>{
                {"wte", 3}, {"wpe", 3}, {"ln_f", 3}, {"h.0", 3}, {"h.1", 2}, {"h.2", 1}, {"h.3", 3}, {"h.4", 2}}));
}

TEST_F(GrowCheckpointTest, CopiesAloneLeaveCountsThatNeedNotBeSaid) {
  ASSERT_OK_AND_ASSIGN(const Manifest grown, Grow(Write(Run(), StateAt(4)), StackBlocks(3, 6).value()));
  EXPECT_THAT(grown.state.updates, IsEmpty());
}

TEST_F(GrowCheckpointTest, FrozenTensorsStayInTheirWireForm) {
  RunConfig run = Run();
  run.model.freeze = {"transformer.w*", "*.attn.*"};
  const std::string folder = Write(run, StateAt(4));
  ASSERT_OK(Grow(folder, InsertBlocks(3, {{{1, kZeroGated}}}).value()));
  EXPECT_FALSE(std::filesystem::equivalent(grown_folder() + "/" + kFrozenFile, folder + "/" + kFrozenFile));
  const Values was = ReadWeights(folder), now = ReadWeights(grown_folder());
  EXPECT_EQ(now.at("transformer.h.3.attn.c_attn.weight"), was.at("transformer.h.2.attn.c_attn.weight"));
  EXPECT_EQ(now.at("transformer.h.2.attn.c_attn.weight"), was.at("transformer.h.1.attn.c_attn.weight"));
  EXPECT_TRUE(IsZero(now.at("transformer.h.2.attn.c_proj.weight")));  // zero for good
}

TEST_F(GrowCheckpointTest, ACheckpointWithAllWeightsInOneFileBecomesOneWithWhatIsFrozenApart) {
  RunConfig run = Run();
  run.model.freeze = {"transformer.w*", "*.attn.*"};
  const std::string folder = Write(run, StateAt(4), WeightLayout::kOneFile);
  ASSERT_OK_AND_ASSIGN(const Manifest branch, Branch(folder, {{"steps", "99"}}));
  const std::string made = dir_.File("branch/checkpoints/step-00000004");
  EXPECT_OK(VerifyCheckpointFolder(made));
  EXPECT_FALSE(std::filesystem::exists(made + "/" + kModelFile));
  EXPECT_TRUE(ReadAll(made + "/" + kFrozenFile).contains("transformer.h.0.attn.c_attn.weight"));
  EXPECT_TRUE(ReadAll(made + "/" + kTrainedFile).contains("transformer.h.0.mlp.c_fc.weight"));
  EXPECT_EQ(ReadWeights(made), ReadWeights(folder));
}

TEST_F(GrowCheckpointTest, PatternsThatWouldFreezeOthersAreRefused) {
  RunConfig run = Run();
  run.model.freeze = {"transformer.h.0.*", "transformer.h.1.*"};
  const std::string folder = Write(run, StateAt(4));
  EXPECT_THAT(Grow(folder, InsertBlocks(3, {{{0, kCopy}}}).value()),
              StatusIs(absl::StatusCode::kInvalidArgument, "model.freeze: transformer.h.1."));
  EXPECT_THAT(Grow(folder, InsertBlocks(3, {{{1, kCopy}}}).value()),
              StatusIs(absl::StatusCode::kInvalidArgument, "is frozen, and would train as transformer.h.2."));
  EXPECT_OK(Grow(folder, InsertBlocks(3, {{{2, kCopy}}}).value()));
}

TEST_F(GrowCheckpointTest, PatternsThatAreAddedMayFreezeTheSameTensorsByTheirNewNumbers) {
  RunConfig run = Run();
  run.model.freeze = {"*", "!transformer.h.2.*"};  // the last one trains
  const std::string folder = Write(run, StateAt(4));
  const auto blocks = InsertBlocks(3, {{{0, kCopy}}}).value();
  const auto grow = [&](const std::vector<std::string>& patterns) {
    std::vector<FieldOverride> overrides;
    for (const std::string& pattern : patterns) overrides.push_back({"model.freeze", pattern});
    return Grow(folder, blocks, overrides);
  };
  EXPECT_THAT(grow({}), StatusIs(absl::StatusCode::kInvalidArgument, "--set 'model.freeze=PATTERN' adds a pattern"));
  EXPECT_THAT(grow({"!transformer.h.3.*"}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "model.freeze: transformer.h.1.ln_1.weight is frozen, and would train as transformer.h.2."));
  EXPECT_THAT(
      grow({"*", "!transformer.h.3.*", "!transformer.ln_f.bias"}),
      StatusIs(absl::StatusCode::kInvalidArgument, "model.freeze: transformer.ln_f.bias is frozen, and would train"));
  EXPECT_THAT(Grow(folder, blocks, {{"model.freeze", "*"}, {"model.residual_dropout", "0.5"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--set: "));
  ASSERT_OK_AND_ASSIGN(const Manifest grown, grow({"transformer.h.2.*", "!transformer.h.3.*"}));
  EXPECT_EQ(grown.run.model.freeze,
            (std::vector<std::string>{"*", "!transformer.h.2.*", "transformer.h.2.*", "!transformer.h.3.*"}));
  const Values was = ReadWeights(folder), now = ReadWeights(grown_folder());
  EXPECT_EQ(now.at("transformer.h.3.mlp.c_fc.weight"), was.at("transformer.h.2.mlp.c_fc.weight"));
  EXPECT_EQ(now.at("transformer.h.1.mlp.c_fc.weight"), was.at("transformer.h.0.mlp.c_fc.weight"));
  const Values moments = ReadAll(grown_folder() + "/" + kOptimizerFile);
  EXPECT_TRUE(moments.contains("exp_avg.transformer.h.3.mlp.c_fc.weight"));
  EXPECT_FALSE(moments.contains("exp_avg.transformer.h.2.mlp.c_fc.weight"));
}

TEST_F(GrowCheckpointTest, AGatedBlockInWhichNothingCouldEverOpenItIsRefused) {
  const std::vector<GrownBlock> gated = InsertBlocks(3, {{{1, kZeroGated}}}).value();
  RunConfig run = Run();
  run.model.freeze = {"transformer.h.*", "!*.ln_1.*"};
  EXPECT_THAT(Grow(Write(run, StateAt(4)), gated),
              StatusIs(kInvalid, "model.freeze: block 2, ZERO_GATED, would add nothing"));
  run.model.freeze.clear();
  run.model.lora = {.rank = 4, .alpha = 8, .targets = {"c_attn"}};
  const std::string folder = Write(run, StateAt(5));
  EXPECT_THAT(Grow(folder, gated), StatusIs(kInvalid, "model.lora.targets: block 2, ZERO_GATED, would add nothing"));
  EXPECT_OK(Grow(folder, InsertBlocks(3, {{{1, kCopy}}}).value()));
}

TEST_F(GrowCheckpointTest, AGatedBlocksAdaptersAddNothingAndCanLearn) {
  RunConfig run = Run();
  run.model.lora = {.rank = 4, .alpha = 8};
  run.optimizer.groups = {{{"*.lora_B.weight"}, 16}};
  const std::string folder = Write(run, StateAt(4));
  ASSERT_OK_AND_ASSIGN(const Manifest grown, Grow(folder, InsertBlocks(3, {{{0, kCopy}, {2, kZeroGated}}}).value()));
  EXPECT_OK(VerifyCheckpointFolder(grown_folder()));
  const Values was = ReadWeights(folder), now = ReadWeights(grown_folder());
  EXPECT_EQ(now.size(), was.size() + 2 * (12 + 8));
  int zeros = 0;
  for (const auto& [name, values] : now) {
    if (!absl::StartsWith(name, "transformer.h.4.")) continue;
    const bool is_zero = absl::StrContains(name, ".c_proj.") && !absl::EndsWith(name, ".lora_A.weight");
    zeros += is_zero ? 1 : 0;
    std::string source = name;
    source[14] = '2';
    EXPECT_EQ(values, is_zero ? std::vector<float>(values.size()) : was.at(source)) << name;
  }
  EXPECT_EQ(zeros, 2 * 3);  // of each product its weight, bias and B
  const std::string adapter = "mlp.c_proj.lora_A.weight";
  EXPECT_EQ(now.at("transformer.h.1." + adapter), was.at("transformer.h.0." + adapter));
  EXPECT_EQ(now.at("transformer.h.2." + adapter), was.at("transformer.h.1." + adapter));
  const Values moments_was = ReadAll(folder + "/" + kOptimizerFile);
  const Values moments = ReadAll(grown_folder() + "/" + kOptimizerFile);
  EXPECT_EQ(moments.size(), 2u * 5 * 8);
  EXPECT_TRUE(IsZero(moments.at("exp_avg.transformer.h.4." + adapter)));
  EXPECT_EQ(moments.at("exp_avg.transformer.h.3." + adapter), moments_was.at("exp_avg.transformer.h.2." + adapter));
  EXPECT_EQ(grown.state.updates,
            (std::map<std::string, int64_t>{{"h.0", 3}, {"h.1", 3}, {"h.2", 3}, {"h.3", 3}, {"h.4", 0}}));
  EXPECT_EQ(grown.run.model.lora, run.model.lora);
  EXPECT_THAT(LoadRunConfig(dir_.File("grown/run.textproto"), {}), IsOkAndHolds(grown.run));
  ModelConfig said = grown.run.model;
  said.init_seed = 0;  // which is no weight's
  EXPECT_THAT(ModelConfigFromJson(ReadFile(grown_folder() + "/" + kConfigFile).value()), IsOkAndHolds(said));
}

TEST_F(GrowCheckpointTest, AdaptersStayWhatTheyAreAndFrozenIsWhatWas) {
  RunConfig run = Run();
  run.model.lora = {.rank = 4, .alpha = 8, .targets = {"c_attn"}};
  const std::string folder = Write(run, StateAt(4));
  const std::vector<GrownBlock> blocks = StackBlocks(3, 6).value();
  for (const char* field : {"model.lora.rank", "model.lora.alpha", "model.lora.targets"}) {
    EXPECT_THAT(Grow(folder, blocks, {{field, absl::EndsWith(field, "targets") ? "c_fc" : "2"}}),
                StatusIs(kInvalid, absl::StrCat("--set: ", field, ": a checkpoint's tensors and position go by it")));
  }
  EXPECT_THAT(Branch(folder, {{"model.freeze", "!transformer.ln_f.bias"}}),
              StatusIs(kInvalid, "model.freeze: transformer.ln_f.bias is frozen, and would train"));
  EXPECT_THAT(Branch(folder, {{"model.freeze", "*.lora_A.weight"}}),
              StatusIs(kInvalid, "c_attn.lora_A.weight trains, and would be frozen"));
  EXPECT_OK(Branch(folder, {{"steps", "99"}}));
  EXPECT_OK(Grow(folder, blocks));
}

TEST_F(GrowCheckpointTest, TargetsThatNameABlockAreRefusedWhereItIsAnotherThen) {
  RunConfig run = Run();
  run.model.lora = {.rank = 4, .alpha = 8, .targets = {"1.attn.c_attn"}};
  const std::string folder = Write(run, StateAt(4));
  EXPECT_THAT(
      Grow(folder, InsertBlocks(3, {{{0, kCopy}}}).value()),
      StatusIs(kInvalid,
               "model.lora.targets: there is no transformer.h.0.attn.c_attn.lora_A.weight, and there would be a "
               "transformer.h.1.attn.c_attn.lora_A.weight made of it"));
  EXPECT_THAT(
      Grow(folder, InsertBlocks(3, {{{1, kCopy}}}).value()),
      StatusIs(kInvalid,
               "model.lora.targets: there is a transformer.h.1.attn.c_attn.lora_A.weight, and there would be no "
               "transformer.h.2.attn.c_attn.lora_A.weight made of it"));
  EXPECT_OK(Grow(folder, InsertBlocks(3, {{{2, kCopy}}}).value()));
}

TEST_F(GrowCheckpointTest, PatternsThatWouldGiveTensorsOtherRatesAreRefusedUntilTheyAreSeenTo) {
  RunConfig run = Run();
  run.optimizer.groups = {{{"transformer.h.0.*"}, 0.5}};
  const std::string folder = Write(run, StateAt(4));
  EXPECT_THAT(Grow(folder, InsertBlocks(3, {{{0, kCopy}}}).value()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "optimizer.groups: transformer.h.0.ln_1.weight is in group 0, and would be in no group as "
                       "transformer.h.1.ln_1.weight"));
  EXPECT_THAT(
      Grow(folder, InsertBlocks(3, {{{0, kCopy}}}).value(), {{"optimizer.groups[0].learning_rate_scale", "0.4"}}),
      StatusIs(absl::StatusCode::kInvalidArgument, "and would be in no group as transformer.h.1."));
  ASSERT_OK_AND_ASSIGN(const Manifest grown, Grow(folder, InsertBlocks(3, {{{0, kCopy}}}).value(),
                                                  {{"optimizer.groups[0].tensors", "transformer.h.1.*"}}));
  EXPECT_EQ(grown.run.optimizer.groups,
            (std::vector<ParameterGroupConfig>{{{"transformer.h.0.*", "transformer.h.1.*"}, 0.5}}));
}

TEST_F(GrowCheckpointTest, PatternsThatNameNoMovedBlockStay) {
  RunConfig run = Run();
  run.optimizer.groups = {{{"transformer.h.0.*"}, 0.5}, {{"*.bias"}, 1, 0}};
  EXPECT_OK(Grow(Write(run, StateAt(4)), InsertBlocks(3, {{{2, kCopy}}}).value()));
}

TEST_F(GrowCheckpointTest, FieldsOfTheRunThatGoesOnMayBeSetButNotThoseThatTheCheckpointGoesBy) {
  const std::string folder = Write(Run(), StateAt(4));
  const std::vector<GrownBlock> blocks = StackBlocks(3, 6).value();
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{{"model.layers", "7"},
                                                                                     {"model.dropout", "0.1"},
                                                                                     {"batch.micro_batch", "3"},
                                                                                     {"precision.wire", "FP32"},
                                                                                     {"data.seed", "4"}}) {
    EXPECT_THAT(Grow(folder, blocks, {{field, value}}),
                StatusIs(absl::StatusCode::kInvalidArgument, "--set: " + field + ": a checkpoint's tensors"));
  }
  EXPECT_THAT(Grow(folder, blocks, {{"evaluation.every_steps", "9"}, {"evaluation.held_out", "0.5"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--set: evaluation.held_out: a checkpoint's tensors"));
  EXPECT_THAT(Grow(folder, blocks, {{"steps", "x"}}), StatusIs(absl::StatusCode::kInvalidArgument, "steps: \"x\""));
  EXPECT_THAT(Grow(folder, blocks, {{"steps", "3"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--set: steps: 3, must be at least 4"));
  EXPECT_FALSE(std::filesystem::exists(grown_folder()));
  ASSERT_OK_AND_ASSIGN(const Manifest grown, Grow(folder, blocks, {{"steps", "99"}, {"depth.drop.share", "0.1"}}));
  EXPECT_EQ(grown.run.steps, 99);
  EXPECT_EQ(grown.run.layer_drop.share, 0.1);
}

TEST_F(GrowCheckpointTest, ABranchHasTheSameTensorsMomentsAndCountsAndOtherFields) {
  RunConfig was = Run();
  was.model.freeze = {"transformer.h.1.*"};
  RunState state = StateAt(4);
  state.updates = {{"wte", 3}, {"wpe", 3}, {"ln_f", 3}, {"h.0", 2}, {"h.2", 1}};
  const std::string folder = Write(was, state), out = dir_.File("branch");
  ASSERT_OK_AND_ASSIGN(const Manifest branch, Branch(folder, {{"steps", "99"},
                                                              {"optimizer.schedule.peak", "0.25"},
                                                              {"optimizer.clip.mode", "LAGGED"},
                                                              {"optimizer.clip.norm", "2"},
                                                              {"checkpoint.every_steps", "7"},
                                                              {"precision.wire_versions", "1"}}));
  const std::string made = out + "/checkpoints/step-00000004";
  EXPECT_OK(VerifyCheckpointFolder(made));
  for (const absl::string_view file : kSummedFilesWithFrozen) {
    EXPECT_EQ(ReadFile(absl::StrCat(made, "/", file)).value(), ReadFile(absl::StrCat(folder, "/", file)).value())
        << file;
    EXPECT_EQ(std::filesystem::equivalent(absl::StrCat(made, "/", file), absl::StrCat(folder, "/", file)),
              file == kFrozenFile)
        << file;
  }
  RunConfig wanted = was;
  wanted.steps = 99;
  wanted.optimizer.peak_learning_rate = 0.25;
  wanted.optimizer.clip = ClipMode::kLagged;
  wanted.optimizer.clip_norm = 2;
  wanted.checkpoint.every_steps = 7;
  wanted.precision.wire_versions = 1;
  EXPECT_THAT(DifferencesThatMatter(wanted, branch.run), IsEmpty());
  EXPECT_EQ(branch.run.checkpoint, wanted.checkpoint);
  EXPECT_EQ(branch.run.precision.wire_versions, 1);
  EXPECT_EQ(branch.state.updates, state.updates);
  EXPECT_EQ(branch.state.losses, state.losses);
  ASSERT_OK_AND_ASSIGN(const RunConfig run, LoadRunConfig(out + "/run.textproto", {}));
  EXPECT_THAT(DifferencesThatMatter(branch.run, run), IsEmpty());
}

TEST_F(GrowCheckpointTest, ABranchThatChangesNothingOrWhatTheCheckpointGoesByIsRefused) {
  const std::string folder = Write(Run(), StateAt(4)), out = dir_.File("branch");
  const auto refused = [&](const std::vector<FieldOverride>& overrides, const std::string& message) {
    EXPECT_THAT(Branch(folder, overrides), StatusIs(absl::StatusCode::kInvalidArgument, message));
  };
  refused({}, "nothing would change: eps train --resume");
  refused({{"steps", "20"}}, "nothing would change: eps train --resume");
  refused({{"steps", "many"}}, "--set: steps: \"many\"");
  refused({{"steps", "3"}}, "--set: steps: 3, must be at least 4, as many as are done");
  refused({{"steps", "21"}, {"model.dropout", "0.1"}}, "--set: model.dropout: a checkpoint's tensors");
  refused({{"steps", "21"}, {"batch.micro_batches", "1"}}, "--set: batch.micro_batches: a checkpoint's tensors");
  refused({{"optimizer.sgd.momentum", "0"}}, "--set: optimizer.sgd.momentum: the run has adamw");
  refused({{"model.freeze", "*.bias"}}, "trains, and would be frozen; what a checkpoint has of a tensor");
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST_F(GrowCheckpointTest, ABranchMayHaveAnotherBalanceOfExpertsAndNoOtherExperts) {
  RunConfig run = Run();
  run.model.family = ModelFamily::kLlama;
  run.model.num_kv_heads = run.model.num_heads;
  run.model.d_head = run.model.d_model / run.model.num_heads;
  run.model.max_positions = run.model.context;
  run.model.d_ff = 8;
  run.model.embedding_dropout = run.model.residual_dropout = 0;
  run.model.experts = {.num = 3, .per_token = 2, .balance = 0.5};
  const std::string folder = Write(run, StateAt(4));
  EXPECT_THAT(Branch(folder, {{"model.experts.per_token", "1"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--set: model.experts.per_token: a checkpoint's tensors"));
  ASSERT_OK_AND_ASSIGN(const Manifest branch, Branch(folder, {{"model.experts.balance", "0.25"}}));
  run.model.experts.balance = 0.25;
  EXPECT_THAT(DifferencesThatMatter(run, branch.run), IsEmpty());
}

TEST_F(GrowCheckpointTest, ABranchMayHaveOtherNumbersOfItsPreferencesAndNoOtherOnes) {
  RunConfig run = Run();
  run.data.documents = DocumentMode::kPadded;
  run.data.tokenizer = TokenForm::kTokenFile;
  run.batch.micro_batch = 2;
  run.model.lora = {.rank = 4, .alpha = 8};  // with which all of it is valid
  const std::string plain = Write(run, StateAt(4));
  EXPECT_THAT(Branch(plain, {{"preferences.beta", "3"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--set: preferences.beta: a checkpoint's tensors"));
  run.preferences = {.rule = PreferenceRule::kSimPo, .beta = 2};
  const std::string folder = Write(run, StateAt(4));
  EXPECT_THAT(Branch(folder, {{"preferences.loss", "DPO"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--set: preferences.loss: a checkpoint's tensors"));
  ASSERT_OK_AND_ASSIGN(const Manifest branch, Branch(folder, {{"preferences.margin", "0.5"}}));
  run.preferences.margin = 0.5;
  EXPECT_THAT(DifferencesThatMatter(run, branch.run), IsEmpty());
}

TEST_F(GrowCheckpointTest, AMomentumThatComesOrGoesTakesItsMomentsAlong) {
  RunConfig run = Run();
  run.optimizer.rule = OptimizerRule::kSgd;
  run.optimizer.momentum = 0.9;
  const std::string folder = Write(run, StateAt(4));
  EXPECT_THAT(Branch(folder, {{"optimizer.sgd.momentum", "0"}}),
              StatusIs(absl::StatusCode::kInvalidArgument, "--set: optimizer.sgd.momentum: a checkpoint's tensors"));
  EXPECT_OK(Branch(folder, {{"optimizer.sgd.momentum", "0.5"}}));
}

TEST_F(GrowCheckpointTest, WhatIsDamagedOrInTheWayIsNamedAndNothingIsLeft) {
  const std::string folder = Write(Run(), StateAt(4));
  const std::vector<GrownBlock> blocks = StackBlocks(3, 6).value();
  ASSERT_OK(MakeDirs(dir_.File("hf")));
  ASSERT_OK(WriteFileAtomically(dir_.File("hf/config.json"), "{}"));
  EXPECT_THAT(Grow(dir_.File("hf"), blocks), StatusIs(absl::StatusCode::kNotFound, "is no checkpoint of a run"));
  std::vector<GrownBlock> many(5000);
  EXPECT_THAT(Grow(folder, many), StatusIs(absl::StatusCode::kInvalidArgument, "layers: 5000"));
  ASSERT_OK_AND_ASSIGN(std::string text, ReadFile(folder + "/" + kModelFile));
  text[text.size() - 5] ^= 1;
  ASSERT_OK(WriteFileAtomically(folder + "/" + kModelFile, text));
  EXPECT_THAT(Grow(folder, blocks), StatusIs(absl::StatusCode::kDataLoss, kModelFile));
  EXPECT_FALSE(std::filesystem::exists(dir_.File("grown")));
  text[text.size() - 5] ^= 1;
  ASSERT_OK(WriteFileAtomically(folder + "/" + kModelFile, text));
  ASSERT_OK(Grow(folder, blocks));
  EXPECT_THAT(Grow(folder, blocks), StatusIs(absl::StatusCode::kFailedPrecondition, "run.textproto is there already"));
  std::filesystem::remove(dir_.File("grown/run.textproto"));
  EXPECT_THAT(Grow(folder, blocks), StatusIs(absl::StatusCode::kFailedPrecondition, "holds checkpoints of a run"));
  ASSERT_OK(MakeDirs(dir_.File("busy")));
  ASSERT_OK_AND_ASSIGN(const FileDescriptor daemon, LockDirectory(dir_.File("busy")));
  EXPECT_THAT(GrowCheckpoint(folder, blocks, {}, dir_.File("busy")),
              StatusIs(absl::StatusCode::kFailedPrecondition, "in use by another process"));
}

TEST_F(GrowCheckpointTest, WhenLatestCannotBeWrittenNoCheckpointIsLeft) {
  const std::string folder = Write(Run(), StateAt(4));
  const std::vector<GrownBlock> blocks = StackBlocks(3, 6).value();
  const std::string latest = dir_.File("grown/checkpoints/latest");
  ASSERT_OK(MakeDirs(latest));
  EXPECT_THAT(Grow(folder, blocks).status().ToString(), ::testing::HasSubstr("cannot replace"));
  EXPECT_FALSE(std::filesystem::exists(grown_folder()));
  std::filesystem::remove(latest);
  EXPECT_OK(Grow(folder, blocks));
}

TEST_F(GrowCheckpointTest, ABertGrowsByCopiesAlone) {
  RunConfig run = Run();
  run.model.family = ModelFamily::kBert;
  run.model.vocab = 100;
  run.model.d_ff = 128;
  run.model.max_positions = 8;
  run.model.num_types = 2;
  run.data.mask.token = 3;
  const std::string folder = Write(run, StateAt(4));
  EXPECT_THAT(Grow(folder, InsertBlocks(3, {{{1, kZeroGated}}}).value()),
              StatusIs(absl::StatusCode::kInvalidArgument, "ZERO_GATED: a BERT's block ends with a norm"));
  ASSERT_OK(Grow(folder, InsertBlocks(3, {{{1, kCopy}}}).value()));
  const Values was = ReadWeights(folder), now = ReadWeights(grown_folder());
  const std::string behind = ".output.LayerNorm.weight";
  EXPECT_EQ(now.at("bert.encoder.layer.2" + behind), was.at("bert.encoder.layer.1" + behind));
  EXPECT_EQ(now.at("bert.encoder.layer.3" + behind), was.at("bert.encoder.layer.2" + behind));
}

TEST_F(GrowCheckpointTest, ALlamaGrowsByItsOwnNames) {
  RunConfig run = Run();
  run.model = {
      .family = ModelFamily::kLlama, .num_layers = 2, .d_model = 32, .num_heads = 2, .context = 8, .vocab = 50};
  run.model.max_positions = 8;
  run.model.d_ff = 64;
  run.model.num_kv_heads = 1;
  run.model.d_head = 16;
  const std::string folder = Write(run, StateAt(4));
  ASSERT_OK(Grow(folder, SpreadBlocks(2, 4, kZeroGated).value()));
  const Values was = ReadWeights(folder), now = ReadWeights(grown_folder());
  EXPECT_EQ(now.at("model.layers.2.self_attn.q_proj.weight"), was.at("model.layers.1.self_attn.q_proj.weight"));
  for (const char* zero : {"model.layers.1.self_attn.o_proj.weight", "model.layers.3.mlp.down_proj.weight"}) {
    EXPECT_TRUE(IsZero(now.at(zero))) << zero;
  }
}

}  // namespace
}  // namespace eps
