#include "cli/verify/comparison.h"

#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/verify/digest_file.h"
#include "common/base/file_util.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps::cli {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

ModelSpec TinyModel() {
  ModelConfig config;
  config.num_layers = 3;
  config.d_model = 16;
  config.num_heads = 2;
  config.context = 8;
  config.vocab = 64;
  return *BuildModel(config);
}

class ComparisonTest : public testing::Test {
 protected:
  std::vector<StepDigests> Steps(int count) const {
    std::vector<StepDigests> steps;
    for (int s = 0; s < count; ++s) {
      StepDigests& step = steps.emplace_back(StepDigests{.step = s, .loss = 5.0 - s});
      for (const BlobSpec& blob : model_.blobs) {
        for (const TensorSpec& tensor : blob.tensors) step.tensors.push_back({tensor.name, "a", "b"});
      }
    }
    return steps;
  }
  TensorDigests& Tensor(StepDigests& step, const std::string& name) const {
    for (TensorDigests& tensor : step.tensors) {
      if (tensor.name == name) return tensor;
    }
    ADD_FAILURE() << "no tensor " << name;
    return step.tensors.front();
  }
  std::string Said(const std::vector<StepDigests>& is) const {
    const auto difference = Compare(model_, Steps(static_cast<int>(is.size())), is);
    EXPECT_TRUE(difference.ok()) << difference.status();
    return difference->has_value() ? ToString(**difference, Explain(model_, **difference)) : "the same";
  }

  const ModelSpec model_ = TinyModel();
};

TEST_F(ComparisonTest, EqualRunsHaveNoDifference) { EXPECT_EQ(Said(Steps(3)), "the same"); }

TEST_F(ComparisonTest, ALossThatIsNotANumberIsEqualToItself) {
  std::vector<StepDigests> was = Steps(1);
  was[0].loss = std::numeric_limits<double>::quiet_NaN();
  const auto difference = Compare(model_, was, was);
  ASSERT_TRUE(difference.ok());
  EXPECT_FALSE(difference->has_value());
}

TEST_F(ComparisonTest, TheFirstStepCountsAndInItTheGradientNearestTheHead) {
  std::vector<StepDigests> is = Steps(3);
  for (TensorDigests& tensor : is[1].tensors) tensor.master = "x";  // as clipping spreads it
  Tensor(is[1], "transformer.h.0.attn.c_attn.weight").gradient = "x";
  Tensor(is[1], "transformer.h.1.attn.c_attn.weight").gradient = "x";
  Tensor(is[1], "transformer.h.1.mlp.c_fc.bias").gradient = "x";
  for (TensorDigests& tensor : is[2].tensors) tensor.gradient = tensor.master = "x";
  const auto difference = Compare(model_, Steps(3), is);
  ASSERT_TRUE(difference.ok() && difference->has_value());
  EXPECT_EQ((*difference)->step, 1);
  EXPECT_FALSE((*difference)->loss_differs);
  EXPECT_THAT((*difference)->gradients,
              ElementsAre("transformer.h.1.mlp.c_fc.bias", "transformer.h.1.attn.c_attn.weight",
                          "transformer.h.0.attn.c_attn.weight"));
  const std::string said = Said(is);
  EXPECT_THAT(said, HasSubstr("step 1, gradient of transformer.h.1.mlp.c_fc.bias (h.1)"));
  EXPECT_THAT(said, HasSubstr("from h.1 down to h.0"));
  EXPECT_THAT(said, HasSubstr("the backward of h.1"));
  EXPECT_THAT(said, HasSubstr("after the update 40 tensors differ"));
}

TEST_F(ComparisonTest, WhereTheLossDiffersItBeginsInForward) {
  std::vector<StepDigests> is = Steps(1);
  is[0].loss = 5.5;
  for (TensorDigests& tensor : is[0].tensors) tensor.gradient = tensor.master = "x";
  const std::string said = Said(is);
  EXPECT_THAT(said, HasSubstr("gradient of transformer.ln_f.bias"));
  EXPECT_THAT(said, HasSubstr("all other 39 tensors"));
  EXPECT_THAT(said, HasSubstr("begins in forward"));
  EXPECT_THAT(said, HasSubstr("5.5, not 5"));
}

TEST_F(ComparisonTest, WhatComesOutOfTheLayersTellsWhereForwardBeginsToDiffer) {
  const Difference difference = {
      .step = 1, .loss_differs = true, .gradients = {"transformer.ln_f.bias"}, .num_tensors = 40};
  const ForwardDigests was = {{{1, 0, 0, 0}, "a"}, {{1, 2, 0, 0}, "b"}, {{1, 2, 0, 1}, "c"}, {{1, 3, 0, 0}, "d"}};
  ForwardDigests is = was;
  is[{0, 0, 0, 0}] = "x";  // another step's
  EXPECT_THAT(Explain(model_, difference, was, is).rest, HasSubstr("begins in the head"));
  is[{1, 2, 0, 1}] = is[{1, 3, 0, 0}] = "x";
  EXPECT_THAT(Explain(model_, difference, was, is).rest, HasSubstr("the forward of h.1 (vnode 0, micro-batch 1)"));
  EXPECT_THAT(Explain(model_, difference, was, {}).rest, HasSubstr("begins in forward"));
}

TEST_F(ComparisonTest, AMasterAloneIsTheUpdatesFault) {
  std::vector<StepDigests> is = Steps(1);
  Tensor(is[0], "transformer.wpe.weight").master = "x";
  EXPECT_THAT(Said(is),
              HasSubstr("master of transformer.wpe.weight (embedding), no other tensor's; no gradient differs"));
}

TEST_F(ComparisonTest, RunsOfOtherStepsOrTensorsAreRefused) {
  EXPECT_THAT(Compare(model_, Steps(2), Steps(1)), StatusIs(absl::StatusCode::kDataLoss));
  std::vector<StepDigests> is = Steps(1);
  is[0].tensors.pop_back();
  EXPECT_THAT(Compare(model_, Steps(1), is), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(DigestFileTest, ReadsWhatTheDaemonWritesAndNamesTheLineThatIsWrong) {
  const TempDir folder;
  const std::string path = folder.path() + "/digests.jsonl";
  const std::string good = R"({"step":0,"loss":null,"skipped":true,"seconds":0.5,"tokens":8,)"
                           R"("tensors":[{"name":"w","gradient":"0011","master":"2233"}]})"
                           "\n";
  ASSERT_TRUE(WriteFileAtomically(path, good).ok());
  const auto steps = ReadDigestFile(path);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_EQ(steps->size(), 1u);
  EXPECT_NE((*steps)[0].loss, (*steps)[0].loss);
  EXPECT_TRUE((*steps)[0].skipped);
  EXPECT_EQ((*steps)[0].tensors[0].master, "2233");
  for (const std::string& bad : {good + good, good + "{\"step\":1", good + "{\"step\":1}\n", std::string("[]\n")}) {
    ASSERT_TRUE(WriteFileAtomically(path, bad).ok());
    EXPECT_THAT(ReadDigestFile(path), StatusIs(absl::StatusCode::kDataLoss)) << bad;
  }
  EXPECT_THAT(ReadDigestFile(folder.path() + "/none"), StatusIs(absl::StatusCode::kNotFound));
}

TEST(DigestFileTest, ReadsWhatTheWorkersWrite) {
  const TempDir folder;
  const std::string path = folder.path() + "/forward.jsonl";
  const std::string line = R"({"step":1,"layer":2,"vnode":3,"micro_batch":0,"output":"00ff"})";
  ASSERT_TRUE(WriteFileAtomically(path, line + "\n").ok());
  ForwardDigests digests;
  ASSERT_TRUE(ReadForwardFile(path, digests).ok());
  EXPECT_EQ(digests, (ForwardDigests{{{1, 2, 3, 0}, "00ff"}}));
  ASSERT_TRUE(WriteFileAtomically(path, line.substr(5)).ok());
  EXPECT_THAT(ReadForwardFile(path, digests), StatusIs(absl::StatusCode::kDataLoss, "forward.jsonl:1"));
}

}  // namespace
}  // namespace eps::cli
