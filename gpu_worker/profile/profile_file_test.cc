#include "gpu_worker/profile/profile_file.h"

#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "common/numeric/quantized.h"
#include "common/testing/status_matchers.h"

namespace eps::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(ProfileFileTest, WhatIsWrittenIsRead) {
  for (const char* device : {"cpu", "cuda:1"}) {
    Profile profile = NominalProfile(device);
    profile.layers[1].shape.attention_dropout = 0.1;
    profile.layers[1].shape.is_gated = true;
    profile.layers[1].shape.lora = {.rank = 16,
                                    .dropout = 0.05,
                                    .in_columns = 7000,
                                    .out_columns = 9000,
                                    .down_columns = 3000,
                                    .frozen_elems = int64_t{1} << 31};
    profile.layers[1].shape.quantized_elems = int64_t{1} << 32;
    profile.layers[1].shape.quantized_format = QuantizedFormat::kNf4;
    profile.layers[1].expand_seconds = 0.25;
    ASSERT_OK_AND_ASSIGN(const Profile read, ProfileFromJson(ProfileToJson(profile)));
    EXPECT_EQ(ProfileToJson(read), ProfileToJson(profile));
    EXPECT_EQ(read.sharing, profile.sharing);
    EXPECT_EQ(read.layers.size(), 3u);
    for (const auto field : {&LoraShape::rank, &LoraShape::in_columns, &LoraShape::out_columns,
                             &LoraShape::down_columns, &LoraShape::frozen_elems}) {
      EXPECT_EQ(read.layers[1].shape.lora.*field, profile.layers[1].shape.lora.*field);
    }
    EXPECT_EQ(read.layers[1].shape.lora.dropout, 0.05);
    EXPECT_EQ(read.layers[1].shape.quantized_elems, int64_t{1} << 32);
    EXPECT_EQ(read.layers[1].shape.quantized_format, QuantizedFormat::kNf4);
  }
}

TEST(ProfileFileTest, AShapeWithoutAdaptersSaysNothingOfThemAndOneWithSaysAll) {
  Profile profile = NominalProfile("cpu");
  EXPECT_THAT(ProfileToJson(profile), Not(HasSubstr("lora")));  // as profiles of before there were any
  EXPECT_THAT(ProfileToJson(profile), Not(HasSubstr("quantized_elems")));
  profile.layers[1].shape.lora = profile.layers[2].shape.lora = {.rank = 4};  // the head has none
  const std::string good = ProfileToJson(profile);
  for (const auto& [from, to, message] : std::vector<std::tuple<std::string, std::string, std::string>>{
           {"\"rank\": 4", "\"rank\": -1", "layers[1].shape.lora.rank: -1, must be a number from 0 to"},
           {"\"in_columns\"", "\"columns\"", "layers[1].shape.lora.in_columns: nothing, must be there"}}) {
    EXPECT_THAT(ProfileFromJson(absl::StrReplaceAll(good, {{from, to}})),
                StatusIs(absl::StatusCode::kInvalidArgument, message));
  }
}

TEST(ProfileFileTest, ATileThatIsSmallerThanAMicroBatchIsReadAsItWasWritten) {
  Profile profile = NominalProfile("cpu");
  LayerShape& shape = profile.layers[1].shape;
  shape.SetFeedForwardTile(shape.M());
  EXPECT_THAT(ProfileToJson(profile), Not(HasSubstr("feed_forward_tile")));
  shape.feed_forward_tile = 64;
  const std::string good = ProfileToJson(profile);
  ASSERT_OK_AND_ASSIGN(const Profile read, ProfileFromJson(good));
  EXPECT_EQ(read.layers[1].shape.feed_forward_tile, 64);
  EXPECT_THAT(
      ProfileFromJson(absl::StrReplaceAll(good, {{"\"feed_forward_tile\": 64", "\"feed_forward_tile\": 0.5"}})),
      StatusIs(absl::StatusCode::kInvalidArgument, "layers[1].shape.feed_forward_tile: 0.5, must be a number from 1"));
}

TEST(ProfileFileTest, ExpertsAreReadAsTheyWereWritten) {
  Profile profile = NominalProfile("cpu");
  EXPECT_THAT(ProfileToJson(profile), Not(HasSubstr("experts")));
  profile.layers[1].shape.experts = {.num = 128, .per_token = 8};
  const std::string good = ProfileToJson(profile);
  ASSERT_OK_AND_ASSIGN(const Profile read, ProfileFromJson(good));
  EXPECT_EQ(read.layers[1].shape.experts.num, 128);
  EXPECT_EQ(read.layers[1].shape.experts.per_token, 8);
  EXPECT_THAT(
      ProfileFromJson(absl::StrReplaceAll(good, {{"\"per_token\": 8", "\"per_token\": 129"}})),
      StatusIs(absl::StatusCode::kInvalidArgument, "layers[1].shape.experts.per_token: 129, must be at most num, 128"));
  EXPECT_THAT(ProfileFromJson(absl::StrReplaceAll(good, {{"\"num\": 128", "\"num\": 0"}})),
              StatusIs(absl::StatusCode::kInvalidArgument, "layers[1].shape.experts.num: 0, must be a number from 1"));
}

TEST(ProfileFileTest, AShapeThatSaysNoFormatIsInTheFirstThatThereWas) {
  Profile profile = NominalProfile("cpu");
  profile.layers[1].shape.quantized_elems = 4096;
  profile.layers[1].shape.quantized_format = QuantizedFormat::kNf4;
  const std::string good = ProfileToJson(profile);
  const auto with = [&](const char* name, const char* format) {
    return ProfileFromJson(absl::StrReplaceAll(good, {{"quantized_format", name}, {"NF4", format}}));
  };
  ASSERT_OK_AND_ASSIGN(const Profile read, with("other", "NF4"));
  EXPECT_EQ(read.layers[1].shape.quantized_format, QuantizedFormat::kMxInt8);
  EXPECT_THAT(
      with("quantized_format", "INT4"),
      StatusIs(absl::StatusCode::kInvalidArgument, "layers[1].shape.quantized_format: INT4, must be MXINT8 or NF4"));
}

TEST(ProfileFileTest, ADiskThatWasNotMeasuredIsAnOrdinaryOne) {
  Profile profile = NominalProfile("cpu");
  profile.disk_bytes_per_second = 7e9;
  EXPECT_EQ(ProfileFromJson(ProfileToJson(profile))->disk_bytes_per_second, 7e9);
  const std::string older =
      absl::StrReplaceAll(ProfileToJson(profile), {{"  \"disk_bytes_per_second\": 7000000000.0,\n", ""}});
  EXPECT_THAT(older, Not(HasSubstr("disk")));
  EXPECT_EQ(ProfileFromJson(older)->disk_bytes_per_second, kNominalDiskBytesPerSecond);
}

TEST(ProfileFileTest, WhatIsWrongIsNamed) {
  const std::string good = ProfileToJson(NominalProfile("cpu"));
  struct Case {
    std::string from, to, message;
  };
  const std::vector<Case> cases = {
      {"eps profile 2", "eps profile 9",
       "format: \"eps profile 9\", must be \"eps profile 2\": measure anew, with eps profile"},
      {"\"threads\": 2", "\"threads\": 0", "threads: 0, must be a number from 1 to 1024"},
      {"\"update_bytes_per_second\": 20000000000.0", "\"update_bytes_per_second\": 0",
       "update_bytes_per_second: 0, must be a number from 1 to"},
      {"\"disk_bytes_per_second\": 2000000000.0", "\"disk_bytes_per_second\": -1",
       "disk_bytes_per_second: -1, must be a number from 1 to"},
      {"\"threads\": 2", "\"threads\": 1e300", "threads: 1e+300, must be a number from 1 to 1024"},
      {"\"threads\": 2", "\"threads\": 1.5", "threads: 1.5, must be a whole number"},
      {"\"T\": 256", "\"T\": 1e300", "layers[0].shape.T: 1e+300, must be a number from 1 to"},
      {"\"C\": 768", "\"C\": 0", "layers[0].shape.C: 0, must be a number from 1 to"},
      {"\"window\": 0", "\"window\": -1", "layers[0].shape.window: -1, must be a number from 0 to"},
      {"\"shape\"", "\"form\"", "layers[0].shape: nothing, must be there"},
      {"\"in\": {", "\"inward\": {", "sharing.in: nothing, must be there"},
      {"\"handover_seconds\": 1e-05", "\"handover_seconds\": 1e308",
       "handover_seconds: 1e+308, must be a number from 0 to"},
      {"\"in_bytes_per_second\": 8000000000.0", "\"in_bytes_per_second\": 1e-310", "in_bytes_per_second: "},
      {"\"beside_in\": 0.7", "\"beside_in\": \"fast\"", "sharing.compute.beside_in: \"fast\", must be a number"},
      {"\"layer\": \"head\"", "\"layer\": \"tail\"", "layers[2].layer: tail, must be embedding, block or head"},
      {"\"causal\": true", "\"causal\": 1", "layers[0].shape.causal: 1, must be true or false"},
      {"\"layer\": \"head\"", "\"layer\": \"block\"", "layers: no head with forward_seconds above 0"},
      {"\"compute\": \"fp32\"", "\"compute\": \"fp64\"", "layers[0].shape.compute: fp64, must be fp32, bf16 or fp16"},
      {"\"handover_seconds\"", "\"handover\"", "handover_seconds: nothing, must be there"},
  };
  for (const Case& wrong : cases) {
    const std::string text = absl::StrReplaceAll(good, {{wrong.from, wrong.to}});
    ASSERT_NE(text, good) << wrong.from;
    EXPECT_THAT(ProfileFromJson(text), StatusIs(absl::StatusCode::kInvalidArgument, wrong.message));
  }
  EXPECT_THAT(ProfileFromJson("{"), StatusIs(absl::StatusCode::kInvalidArgument, "not valid JSON at byte offset 1"));
  EXPECT_THAT(ProfileFromJson("[]"), StatusIs(absl::StatusCode::kInvalidArgument, "format"));
  EXPECT_THAT(ReadProfile("/no/such/profile"), StatusIs(absl::StatusCode::kNotFound, "/no/such/profile"));
}

}  // namespace
}  // namespace eps::worker
