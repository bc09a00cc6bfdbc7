#include "common/base/json_keys.h"

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(JsonKeysTest, AKeyThatIsThereTwiceIsNamedByItsPlace) {
  const std::string text = R"({"a": [{"b": 1}, {"b": 1, "\u0062": {"c": 2}}], "a": 3})";
  const std::optional<KeyTwice> twice = FindKeyTwice(text);
  ASSERT_TRUE(twice.has_value());
  EXPECT_EQ(twice->name, "a[1].b");
  EXPECT_EQ(text.substr(twice->offset_bytes, 8), R"("\u0062")");
  EXPECT_THAT(CheckKeysOnce(text), StatusIs(kInvalid, "a[1].b: given twice"));
}

TEST(JsonKeysTest, TheSameKeyOfOtherObjectsIsNone) {
  EXPECT_OK(CheckKeysOnce(R"({"a": {"a": [{"a": ":"}, {"a": "\"a\":"}]}, "b": "a"})"));
  EXPECT_OK(CheckKeysOnce("[]"));
}

}  // namespace
}  // namespace eps
