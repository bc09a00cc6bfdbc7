#include "common/choices/choices.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Pairs = std::vector<std::pair<std::string, std::string>>;

TEST(ChoicesTest, WhatIsWithinBoundsIsTaken) {
  EXPECT_THAT(CheckedChoices(Pairs{}, "choices"), IsOkAndHolds(Choices{}));
  const Pairs pairs = {{"product b", "2"}, {"product a", std::string(kMaxChoiceValueBytes, '1')}};
  EXPECT_THAT(CheckedChoices(pairs, "choices"), IsOkAndHolds(Choices(pairs.begin(), pairs.end())));
}

TEST(ChoicesTest, WhatIsNotIsRefusedByPlace) {
  const struct {
    Pairs pairs;
    const char* error;
  } cases[] = {
      {{{"a", "1"}, {"", "2"}}, "choices[1].key: 0 bytes, want 1 to 256"},
      {{{std::string(257, 'k'), "1"}}, "choices[0].key: 257 bytes"},
      {{{"a", ""}}, "choices[0].value: 0 bytes"},
      {{{"a", std::string(1025, 'v')}}, "choices[0].value: 1025 bytes, want 1 to 1024"},
      {{{"a\n", "1"}}, "choices[0].key: has bytes"},
      {{{"a", std::string("1\0", 2)}}, "choices[0].value: has bytes"},
      {{{"a", "\xc3\xa4"}}, "choices[0].value: has bytes"},
      {{{"a", "1"}, {"b", "1"}, {"a", "1"}}, "choices[2].key: \"a\" comes twice"},
      {Pairs(257, {"a", "1"}), "choices: 257 of them, at most 256"},
  };
  for (const auto& bad : cases) {
    EXPECT_THAT(CheckedChoices(bad.pairs, "choices"), StatusIs(absl::StatusCode::kInvalidArgument, bad.error));
  }
  Pairs long_ones;
  for (int i = 0; i < 64; ++i) long_ones.emplace_back(std::to_string(i), std::string(1024, 'v'));
  EXPECT_THAT(CheckedChoices(long_ones, "choices"),
              StatusIs(absl::StatusCode::kInvalidArgument, "choices: 65654 bytes, at most 65536"));
}

}  // namespace
}  // namespace eps
