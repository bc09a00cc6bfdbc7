#include "common/checkpoint/manifest.h"

#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/checkpoint/run_state.h"
#include "common/checkpoint/testing.h"
#include "common/schedule/loss_scale.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

using nlohmann::ordered_json;

Manifest Example() {
  const std::string sum(64, 'a');
  RunState state = StateAt(4);
  state.data = {12345, std::string(64, 'd')};
  state.choices = {{"cuda \"X\" sm_90", {{"product 1x2", "00ff"}, {"product 2x2", "0100"}}}, {"cuda Y", {{"k", "v"}}}};
  state.device_models = {"cpu a", "cuda Y"};
  return {.run = SmallRun(),
          .state = state,
          .files = {{kConfigFile, {10, sum, {0x0a1b2c3d}}},
                    {kModelFile, {2 * kPartBytes + 1, sum, {0, 0xffffffff, 7}}},
                    {kOptimizerFile, {kPartBytes, sum, {42}}}}};
}

void ExpectSameBits(const std::vector<double>& a, const std::vector<double>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(std::bit_cast<uint64_t>(a[i]), std::bit_cast<uint64_t>(b[i])) << i;
  }
}

TEST(ManifestTest, EveryFieldComesBackAsItWas) {
  const Manifest manifest = Example();
  ASSERT_OK_AND_ASSIGN(const Manifest read, ParseManifest(ManifestToJson(manifest)));
  EXPECT_EQ(read.run, manifest.run);
  EXPECT_EQ(read.files, manifest.files);
  EXPECT_EQ(read.state.version, Version(4));
  ExpectSameBits(read.state.losses, manifest.state.losses);
  ExpectSameBits(read.state.gradient_norms, manifest.state.gradient_norms);
  EXPECT_EQ(read.state.last_norm, manifest.state.last_norm);
  EXPECT_EQ(read.state.tokens, manifest.state.tokens);
  EXPECT_EQ(read.state.train_seconds, manifest.state.train_seconds);
  EXPECT_EQ(read.state.skipped_steps, manifest.state.skipped_steps);
  EXPECT_EQ(read.state.data, manifest.state.data);
  EXPECT_EQ(read.state.choices, manifest.state.choices);
  EXPECT_EQ(read.state.device_models, manifest.state.device_models);
  EXPECT_EQ(ordered_json::parse(ManifestToJson(manifest))["data_position"], 16);
}

TEST(ManifestTest, DoublesKeepEveryBit) {
  Manifest manifest = Example();
  const double infinity = std::numeric_limits<double>::infinity();
  manifest.state.losses = {0.1 + 0.2, std::numeric_limits<double>::denorm_min(), -0.0, 5e300 / 7};
  ASSERT_OK_AND_ASSIGN(Manifest read, ParseManifest(ManifestToJson(manifest)));
  ExpectSameBits(read.state.losses, manifest.state.losses);
  manifest.state.losses = {infinity, -infinity, std::numeric_limits<double>::max(), 3};
  ASSERT_OK_AND_ASSIGN(read, ParseManifest(ManifestToJson(manifest)));
  ExpectSameBits(read.state.losses, manifest.state.losses);
  manifest.state.losses[0] = std::nan("");
  ASSERT_OK_AND_ASSIGN(read, ParseManifest(ManifestToJson(manifest)));
  EXPECT_TRUE(std::isnan(read.state.losses[0]));
}

TEST(ManifestTest, BeforeTheFirstStepListsAreEmpty) {
  Manifest manifest = Example();
  manifest.state = StateAt(0);
  ASSERT_OK_AND_ASSIGN(const Manifest read, ParseManifest(ManifestToJson(manifest)));
  EXPECT_TRUE(read.state.losses.empty());
}

TEST(ManifestTest, EveryFlippedByteIsNoticed) {
  const std::string text = ManifestToJson(Example());
  for (size_t i = 0; i < text.size(); ++i) {
    for (const int bit : {0, 5}) {
      std::string damaged = text;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
      EXPECT_FALSE(ParseManifest(damaged).ok()) << "byte " << i << " bit " << bit;
    }
  }
}

TEST(ManifestTest, EveryTruncationIsNoticed) {
  const std::string text = ManifestToJson(Example());
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_THAT(ParseManifest(text.substr(0, i)), StatusIs(absl::StatusCode::kDataLoss)) << i;
  }
  EXPECT_FALSE(ParseManifest(text + "\n").ok());
}

TEST(ManifestTest, WhatIsNoManifestIsSaid) {
  const std::string deep(1 << 20, '[');
  for (const std::string& text :
       {std::string(), std::string("model"), std::string("[1, 2]"), std::string("null"), std::string("\0\0\0", 3),
        std::string("{\"format\": 1e999}"), deep, "{\"format\":1,\"losses\":" + deep + "}"}) {
    EXPECT_THAT(ParseManifest(text), StatusIs(absl::StatusCode::kDataLoss, "no JSON object")) << text.substr(0, 40);
  }
}

Manifest ReadOlder(int64_t format) {
  return ParseManifest(EditManifest(ManifestToJson(Example()), [&](ordered_json& m) { ToOlderFormat(m, format); }))
      .value();
}

TEST(ManifestTest, OlderFormatsAreReadWithoutWhatTheyDoNotKnow) {
  EXPECT_EQ(ReadOlder(1).files.at(kModelFile).sha256, Example().files.at(kModelFile).sha256);
  EXPECT_TRUE(ReadOlder(1).files.at(kModelFile).part_crcs.empty());
  EXPECT_FALSE(ReadOlder(2).files.at(kModelFile).part_crcs.empty());
  EXPECT_FALSE(ReadOlder(2).state.data.is_known());
  EXPECT_EQ(ReadOlder(3).state.data, Example().state.data);
  EXPECT_TRUE(ReadOlder(3).state.choices.empty());
  EXPECT_EQ(ReadOlder(4).state.choices, Example().state.choices);
  EXPECT_EQ(ReadOlder(4).state.loss_scale, LossScale{1});
  EXPECT_TRUE(ReadOlder(5).state.updates.empty());
  EXPECT_EQ(ReadOlder(6).state.updates, Example().state.updates);
  EXPECT_TRUE(ReadOlder(6).state.device_models.empty());
  EXPECT_EQ(ReadOlder(7).state.device_models, Example().state.device_models);
}

TEST(ManifestTest, AnOlderFormatHasNoMemberThatCameLater) {
  const std::pair<int64_t, const char*> cases[] = {{1, "found an object of 3, must be an object with bytes and sha256"},
                                                   {2, "\"data\" is no field of format 2"},
                                                   {3, "\"choices\" is no field of format 3"},
                                                   {4, "\"loss_scale\" is no field of format 4"},
                                                   {5, "\"updates\" is no field of format 5"},
                                                   {6, "\"device_models\" is no field of format 6"}};
  for (const auto& [format, error] : cases) {
    const std::string text = EditManifest(ManifestToJson(Example()), [format = format](ordered_json& m) {
      ToOlderFormat(m, format + 1);
      m["format"] = format;
    });
    EXPECT_THAT(ParseManifest(text), StatusIs(absl::StatusCode::kDataLoss, error)) << format;
  }
}

TEST(ManifestTest, WhatIsFrozenMayHaveAFileOfItsOwnSinceFormat8) {
  Manifest manifest = Example();
  EXPECT_FALSE(manifest.has_frozen_file());
  const FileSum sum = manifest.files.extract(kModelFile).mapped();
  for (const char* name : {kTrainedFile, kFrozenFile, kIndexFile}) manifest.files[name] = sum;
  const std::string text = ManifestToJson(manifest);
  ASSERT_OK_AND_ASSIGN(const Manifest read, ParseManifest(text));
  EXPECT_TRUE(read.has_frozen_file());
  EXPECT_EQ(read.files, manifest.files);
  const auto refused = [&](const std::function<void(ordered_json&)>& edit, const std::string& error) {
    EXPECT_THAT(ParseManifest(EditManifest(text, edit)), StatusIs(absl::StatusCode::kDataLoss, error));
  };
  refused([](ordered_json& m) { m["files"][kModelFile] = m["files"][kFrozenFile]; },
          "files: found the name \"model.safetensors\", must be config.json, model-00001-of-00002.safetensors, ");
  for (const char* name : {kTrainedFile, kFrozenFile, kIndexFile}) {
    refused([&](ordered_json& m) { m["files"].erase(name); }, absl::StrCat("files.", name, ": found nothing"));
  }
  refused([](ordered_json& m) { ToOlderFormat(m, 7); }, "must be config.json, model.safetensors, optimizer");
  EXPECT_EQ(ordered_json::parse(text)["format"], 8);
  EXPECT_EQ(ordered_json::parse(ManifestToJson(Example()))["format"], 7);  // which older programs read
}

TEST(ManifestTest, NoBlobHadMoreUpdatesThanStepsThatWereNotSkipped) {
  Manifest manifest = Example();
  manifest.state.skipped_steps = 1;
  manifest.state.updates = {{"wte", 3}, {"h.0", 0}};
  ASSERT_OK_AND_ASSIGN(const Manifest read, ParseManifest(ManifestToJson(manifest)));
  EXPECT_EQ(read.state.updates, manifest.state.updates);
  manifest.state.updates["h.0"] = 4;
  EXPECT_THAT(ParseManifest(ManifestToJson(manifest)),
              StatusIs(absl::StatusCode::kDataLoss, "updates.\"h.0\": found 4, must be a whole number from 0 to 3"));
}

TEST(ManifestTest, TheLossScaleOfAnFp16RunComesBackAndIsChecked) {
  Manifest manifest = Example();
  manifest.run.precision = {.wire = Dtype::kF16, .gradients = Dtype::kF32, .loss_scale = LossScaleRule{0x1p4, 100}};
  manifest.state.loss_scale = {0x1p-7, 99};
  const std::string text = ManifestToJson(manifest);
  ASSERT_OK_AND_ASSIGN(const Manifest read, ParseManifest(text));
  EXPECT_EQ(read.state.loss_scale, (LossScale{0x1p-7, 99}));
  EXPECT_EQ(read.run, manifest.run);
  const auto with = [&](const char* member, double value) {
    return ParseManifest(EditManifest(text, [&](ordered_json& m) { m["loss_scale"][member] = value; })).status();
  };
  EXPECT_THAT(with("value", 3), StatusIs(absl::StatusCode::kDataLoss, "loss_scale.value: found 3.0, must be a power"));
  EXPECT_THAT(with("value", 0x1p25), StatusIs(absl::StatusCode::kDataLoss, "loss_scale.value: found"));
  EXPECT_THAT(
      ParseManifest(EditManifest(text, [](ordered_json& m) { m["loss_scale"]["finite_steps"] = 100; })),
      StatusIs(absl::StatusCode::kDataLoss, "loss_scale.finite_steps: found 100, must be a whole number from 0"));
}

TEST(ManifestTest, AnotherFormatIsNamed) {
  const std::string text = EditManifest(ManifestToJson(Example()), [](ordered_json& m) { m["format"] = 9; });
  EXPECT_THAT(ParseManifest(text), StatusIs(absl::StatusCode::kFailedPrecondition, "format: found 9"));
  EXPECT_THAT(ParseManifest("{\"format\": 10}"), StatusIs(absl::StatusCode::kFailedPrecondition, "format: found 10"));
}

struct BadField {
  const char* error;
  std::function<void(ordered_json&)> edit;
};

TEST(ManifestTest, AFieldThatIsWrongIsNamedWithWhatWasFound) {
  const BadField cases[] = {
      {"format: found nothing", [](ordered_json& m) { m.erase("format"); }},
      {"format: found \"1\"", [](ordered_json& m) { m["format"] = "1"; }},
      {"format: found 0", [](ordered_json& m) { m["format"] = 0; }},
      {"step: found nothing", [](ordered_json& m) { m.erase("step"); }},
      {"step: found -1", [](ordered_json& m) { m["step"] = -1; }},
      {"step: found 4.0", [](ordered_json& m) { m["step"] = 4.0; }},
      {"step: found 21", [](ordered_json& m) { m["step"] = 21; }},
      {"step: found 18446744073709551615", [](ordered_json& m) { m["step"] = ~uint64_t{0}; }},
      {"step: found null", [](ordered_json& m) { m["step"] = nullptr; }},
      {"data_position: found 15, must be 16", [](ordered_json& m) { m["data_position"] = 15; }},
      {"data: found nothing", [](ordered_json& m) { m.erase("data"); }},
      {"data: found an object of 1", [](ordered_json& m) { m["data"].erase("bytes"); }},
      {"data.bytes: found -1", [](ordered_json& m) { m["data"]["bytes"] = -1; }},
      {"data.sha256: found \"d\"", [](ordered_json& m) { m["data"]["sha256"] = "d"; }},
      {"choices: found nothing", [](ordered_json& m) { m.erase("choices"); }},
      {"loss_scale: found nothing", [](ordered_json& m) { m.erase("loss_scale"); }},
      {"loss_scale: found 4", [](ordered_json& m) { m["loss_scale"] = 4; }},
      {"loss_scale: found an object of 3", [](ordered_json& m) { m["loss_scale"]["x"] = 4; }},
      {"loss_scale.value: found 2.0, must be 1 in a run without FP16",
       [](ordered_json& m) { m["loss_scale"]["value"] = 2.0; }},
      {"loss_scale.value: found \"1\"", [](ordered_json& m) { m["loss_scale"]["value"] = "1"; }},
      {"loss_scale.finite_steps: found 1, must be 0", [](ordered_json& m) { m["loss_scale"]["finite_steps"] = 1; }},
      {"choices: found an array of 0", [](ordered_json& m) { m["choices"] = ordered_json::array(); }},
      {"choices: found an object of 17, must be an object of at most 16",
       [](ordered_json& m) {
         for (int i = 0; i < 15; ++i) m["choices"][std::to_string(i)] = ordered_json::object();
       }},
      {"choices: found the device model \"xxx",
       [](ordered_json& m) { m["choices"][std::string(257, 'x')] = ordered_json::object(); }},
      {"choices.\"cuda Y\": found 3, must be an object of at least one",
       [](ordered_json& m) { m["choices"]["cuda Y"] = 3; }},
      {"choices.\"cuda Y\": found an object of 0, must be an object of at least one",
       [](ordered_json& m) { m["choices"]["cuda Y"] = ordered_json::object(); }},
      {"choices.\"cuda Y\".\"k\": found 3, must be a string", [](ordered_json& m) { m["choices"]["cuda Y"]["k"] = 3; }},
      {"choices.\"cuda Y\"[0].value: 0 bytes", [](ordered_json& m) { m["choices"]["cuda Y"]["k"] = ""; }},
      {"device_models: found nothing", [](ordered_json& m) { m.erase("device_models"); }},
      {"device_models: found an object of 0", [](ordered_json& m) { m["device_models"] = ordered_json::object(); }},
      {"device_models: found an array of 17, must be an array of at most 16",
       [](ordered_json& m) {
         while (m["device_models"].size() < 17) m["device_models"].push_back("x");
       }},
      {"device_models[1]: found 3, must be a string", [](ordered_json& m) { m["device_models"][1] = 3; }},
      {"device_models[0]: found \"xxx", [](ordered_json& m) { m["device_models"][0] = std::string(257, 'x'); }},
      {"device_models[0]: found \"\", must be a string of 1 to 256",
       [](ordered_json& m) { m["device_models"][0] = ""; }},
      {"device_models[1]: found \"cpu\\n", [](ordered_json& m) { m["device_models"][1] = "cpu\nx"; }},
      {"device_models[1]: found \"cpu a\", must be above the one before",
       [](ordered_json& m) { m["device_models"][1] = "cpu a"; }},
      {"updates: found nothing", [](ordered_json& m) { m.erase("updates"); }},
      {"updates: found an array of 0", [](ordered_json& m) { m["updates"] = ordered_json::array(); }},
      {"updates.\"h.0\": found -1", [](ordered_json& m) { m["updates"]["h.0"] = -1; }},
      {"updates.\"h.0\": found \"1\"", [](ordered_json& m) { m["updates"]["h.0"] = "1"; }},
      {"tokens: found -5", [](ordered_json& m) { m["tokens"] = -5; }},
      {"tokens: found true", [](ordered_json& m) { m["tokens"] = true; }},
      {"skipped_steps: found 5", [](ordered_json& m) { m["skipped_steps"] = 5; }},
      {"train_seconds: found -0.5", [](ordered_json& m) { m["train_seconds"] = -0.5; }},
      {"train_seconds: found \"1\"", [](ordered_json& m) { m["train_seconds"] = "1"; }},
      {"last_norm: found -2", [](ordered_json& m) { m["last_norm"] = -2; }},
      {"losses: found an array of 3", [](ordered_json& m) { m["losses"].erase(0); }},
      {"losses: found an object of 0", [](ordered_json& m) { m["losses"] = ordered_json::object(); }},
      {"losses[2]: found \"nan\"", [](ordered_json& m) { m["losses"][2] = "nan"; }},
      {"losses[0]: found an array of 1", [](ordered_json& m) { m["losses"][0] = ordered_json::array({1}); }},
      {"gradient_norms[1]: found -0.5", [](ordered_json& m) { m["gradient_norms"][1] = -0.5; }},
      {"gradient_norms[1]: found null", [](ordered_json& m) { m["gradient_norms"][1] = nullptr; }},
      {"gradient_norms: found an array of 5", [](ordered_json& m) { m["gradient_norms"].push_back(1); }},
      {"run: found 3", [](ordered_json& m) { m["run"] = 3; }},
      {"run: run config:1:", [](ordered_json& m) { m["run"] = "stepz: 3"; }},
      {"run: model: missing", [](ordered_json& m) { m["run"] = ""; }},
      {"files: found an array", [](ordered_json& m) { m["files"] = ordered_json::array(); }},
      {"files.model.safetensors: found nothing", [](ordered_json& m) { m["files"].erase(kModelFile); }},
      {"files: found the name \"../../etc/passwd\"",
       [](ordered_json& m) { m["files"]["../../etc/passwd"] = m["files"][kModelFile]; }},
      {"files.model.safetensors.bytes: found -1", [](ordered_json& m) { m["files"][kModelFile]["bytes"] = -1; }},
      {"files.model.safetensors.bytes: found 0", [](ordered_json& m) { m["files"][kModelFile]["bytes"] = 0; }},
      {"files.model.safetensors: found an object of 4", [](ordered_json& m) { m["files"][kModelFile]["mode"] = 7; }},
      {"files.config.json.sha256: found \"AB\"", [](ordered_json& m) { m["files"][kConfigFile]["sha256"] = "AB"; }},
      {"files.config.json.sha256: found 12", [](ordered_json& m) { m["files"][kConfigFile]["sha256"] = 12; }},
      {"files.model.safetensors: found an object of 2",
       [](ordered_json& m) { m["files"][kModelFile].erase("crc32_per_mib"); }},
      {"files.model.safetensors.crc32_per_mib: found 7",
       [](ordered_json& m) { m["files"][kModelFile]["crc32_per_mib"] = 7; }},
      {"files.optimizer.safetensors.crc32_per_mib: found \"0000002\"",
       [](ordered_json& m) { m["files"][kOptimizerFile]["crc32_per_mib"] = "0000002"; }},
      {"files.optimizer.safetensors.crc32_per_mib: found \"0000002G\"",
       [](ordered_json& m) { m["files"][kOptimizerFile]["crc32_per_mib"] = "0000002G"; }},
      {"must be 3 times 8", [](ordered_json& m) { m["files"][kModelFile]["crc32_per_mib"] = ""; }},
      // A length that its list of sums cannot have, however long.
      {"files.model.safetensors.crc32_per_mib: found",
       [](ordered_json& m) { m["files"][kModelFile]["bytes"] = std::numeric_limits<int64_t>::max(); }},
      {"\"colour\" is no field of format 7", [](ordered_json& m) { m["colour"] = "red"; }},
  };
  const std::string text = ManifestToJson(Example());
  ASSERT_OK(ParseManifest(EditManifest(text, [](ordered_json&) {})));
  for (const BadField& bad : cases) {
    EXPECT_THAT(ParseManifest(EditManifest(text, bad.edit)), StatusIs(absl::StatusCode::kDataLoss, bad.error));
  }
}

TEST(ManifestTest, AnEditedOneWithoutItsSumIsRefused) {
  std::string text = ManifestToJson(Example());
  const size_t tokens = text.find("\"tokens\": 80");
  ASSERT_NE(tokens, std::string::npos);
  text[tokens + 10] = '9';
  EXPECT_THAT(ParseManifest(text), StatusIs(absl::StatusCode::kDataLoss, "sha256: found"));
}

}  // namespace
}  // namespace eps
