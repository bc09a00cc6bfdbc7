#include "common/samples/token_masking.h"

#include <cstdint>
#include <set>
#include <vector>

#include "common/schedule/vnode_batch.h"
#include "common/testing/status_matchers.h"

namespace eps {
namespace {

constexpr int64_t kVocab = 1000;
constexpr int32_t kMask = 999;

struct Masked {
  std::vector<int32_t> before, tokens, labels;
};
// A sample of `length` tokens 10, 11, ..., of which every seventh is not counted.
Masked MaskOne(const MaskConfig& mask, int64_t length, int64_t place, uint64_t seed = 3) {
  Masked m;
  for (int64_t i = 0; i < length; ++i) {
    m.tokens.push_back(static_cast<int32_t>(10 + i % 900));
    m.labels.push_back(i % 7 == 6 ? kNotCounted : m.tokens.back());
  }
  m.before = m.tokens;
  MaskTokens(mask, kVocab, seed, place, absl::MakeSpan(m.tokens), absl::MakeSpan(m.labels));
  return m;
}

TEST(TokenMaskingTest, AShareIsChosenAndOfItMostBecomeTheMaskTokenSomeOthersAndSomeStay) {
  const Masked m = MaskOne({.share = 0.15, .token = kMask}, 70000, 0);
  int64_t counted = 0, masked = 0, stayed = 0, other = 0;
  std::set<int32_t> others;
  for (size_t i = 0; i < m.tokens.size(); ++i) {
    if (m.labels[i] == kNotCounted) {
      ASSERT_EQ(m.tokens[i], m.before[i]) << i;
      continue;
    }
    ASSERT_NE(i % 7, 6) << "was not to be counted";
    ASSERT_EQ(m.labels[i], m.before[i]) << i;
    ++counted;
    if (m.tokens[i] == kMask) {
      ++masked;
    } else if (m.tokens[i] == m.before[i]) {
      ++stayed;
    } else {
      ++other;
      others.insert(m.tokens[i]);
      ASSERT_TRUE(m.tokens[i] >= 0 && m.tokens[i] < kVocab);
    }
  }
  // 60,000 candidates: five standard deviations are 437 of 9,000 chosen, and 190 of them masked.
  EXPECT_NEAR(counted, 9000, 437);
  EXPECT_NEAR(masked, 0.8 * static_cast<double>(counted), 190);
  EXPECT_NEAR(stayed, 0.1 * static_cast<double>(counted), 143);
  EXPECT_NEAR(other, 0.1 * static_cast<double>(counted), 143);
  EXPECT_GT(others.size(), 450u) << "of all the vocabulary";
}

TEST(TokenMaskingTest, WhatMayNeverBeMaskedIsNot) {
  const Masked m = MaskOne({.share = 0.99, .token = kMask, .never = {12, 20}}, 5000, 0);
  int64_t left = 0;
  for (size_t i = 0; i < m.tokens.size(); ++i) {
    if (m.before[i] != 12 && m.before[i] != 20) continue;
    ++left;
    EXPECT_EQ(m.tokens[i], m.before[i]);
    EXPECT_EQ(m.labels[i], kNotCounted);
  }
  EXPECT_GT(left, 8);
}

TEST(TokenMaskingTest, APlaceIsMaskedTheSameAgainAndAnotherOneOtherwise) {
  const MaskConfig mask = {.share = 0.3, .token = kMask};
  const Masked a = MaskOne(mask, 300, 5);
  EXPECT_EQ(MaskOne(mask, 300, 5).tokens, a.tokens);
  EXPECT_NE(MaskOne(mask, 300, 6).labels, a.labels);
  EXPECT_NE(MaskOne(mask, 300, 5 + (int64_t{1} << 32)).labels, a.labels);
  EXPECT_NE(MaskOne(mask, 300, 5, 4).labels, a.labels);
}

}  // namespace
}  // namespace eps
