#include "common/model/name_patterns.h"

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(NamePatternsTest, GlobsMatchWholeNames) {
  EXPECT_TRUE(MatchesGlob("transformer.h.1.*", "transformer.h.1.ln_1.bias"));
  EXPECT_FALSE(MatchesGlob("transformer.h.1.*", "transformer.h.11.ln_1.bias"));
  EXPECT_FALSE(MatchesGlob("h.1.*", "transformer.h.1.ln_1.bias"));
  EXPECT_TRUE(MatchesGlob("*", ""));
  EXPECT_FALSE(MatchesGlob("", "a"));
  EXPECT_TRUE(MatchesGlob("a**b?", "axyzbc"));
  EXPECT_FALSE(MatchesGlob("a?", "a"));
  EXPECT_TRUE(MatchesGlob("*.bias", "a.bias.bias"));
  EXPECT_TRUE(MatchesGlob("*a*b*c", "xxaxxabxxbcxc"));
  EXPECT_FALSE(MatchesGlob("*a*b*c", "xxaxxabxxbcx"));
  EXPECT_FALSE(MatchesGlob("a.b", "axb"));  // a dot is a dot
}

ModelSpec SmallModel() {
  return *BuildModel({.num_layers = 2, .d_model = 8, .num_heads = 1, .context = 8, .vocab = 16});
}

TEST(NamePatternsTest, TheLastPatternThatMatchesATensorCounts) {
  auto chosen = ChooseTensors(SmallModel(), {"transformer.h.*", "!*.bias", "transformer.h.1.*.bias"}, "field");
  ASSERT_OK(chosen);
  EXPECT_EQ(chosen->size(), 28u);
  EXPECT_FALSE(chosen->at("transformer.wte.weight"));
  EXPECT_TRUE(chosen->at("transformer.h.0.ln_1.weight"));
  EXPECT_FALSE(chosen->at("transformer.h.0.ln_1.bias"));
  EXPECT_TRUE(chosen->at("transformer.h.1.ln_1.bias"));
}

TEST(NamePatternsTest, WhatNoneMatchesIsAsTheCallerHasIt) {
  const auto is_bias = [](const TensorSpec& tensor) { return tensor.shape.size() == 1; };
  auto chosen = ChooseTensors(SmallModel(), {"!transformer.h.*", "*.ln_1.weight"}, "field", is_bias);
  ASSERT_OK(chosen);
  EXPECT_TRUE(chosen->at("transformer.ln_f.bias"));
  EXPECT_FALSE(chosen->at("transformer.wte.weight"));
  EXPECT_FALSE(chosen->at("transformer.h.0.ln_1.bias"));
  EXPECT_TRUE(chosen->at("transformer.h.0.ln_1.weight"));
  chosen = ChooseTensors(SmallModel(), {}, "field", is_bias);
  ASSERT_OK(chosen);
  EXPECT_TRUE(chosen->at("transformer.h.0.ln_1.bias"));
}

TEST(NamePatternsTest, ErrorsNameTheField) {
  EXPECT_THAT(
      ChooseTensors(SmallModel(), {"*", "!transformer.h.2.ln_1.bias"}, "a.b[3]"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               "a.b[3]: \"!transformer.h.2.ln_1.bias\" matches no tensor; names are those of an exported folder, such "
               "as transformer.h."));
}

}  // namespace
}  // namespace eps
