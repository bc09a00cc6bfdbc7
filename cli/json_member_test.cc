#include "cli/json_member.h"

#include <optional>
#include <string>

#include "gtest/gtest.h"

namespace eps::cli {
namespace {

TEST(JsonMemberTest, AValueIsFoundAsItIsWritten) {
  const char* const object = R"( {"a": 1000000000000000019884624838656, "b" :[1, {"a": "]"}], "c\"":"x\\","d":{}} )";
  EXPECT_EQ(FindMember(object, "a"), "1000000000000000019884624838656");
  EXPECT_EQ(FindMember(object, "b"), R"([1, {"a": "]"}])");
  EXPECT_EQ(FindMember(object, "c\""), R"("x\\")");
  EXPECT_EQ(FindMember(object, "d"), "{}");
  EXPECT_EQ(FindMember(object, "e"), std::nullopt);
  EXPECT_EQ(FindMember("{}", "a"), std::nullopt);
}

TEST(JsonMemberTest, OnlyTheValueIsReplacedOfEqualNamesTheLast) {
  EXPECT_EQ(WithMember("{\n\"a\" : 1,\"n\": 1e+30, \"a\":[2] }\n", "a", "\"x\""),
            "{\n\"a\" : 1,\"n\": 1e+30, \"a\":\"x\" }\n");
  EXPECT_EQ(WithMember(R"({"a":true})", "a", "null"), R"({"a":null})");
}

TEST(JsonMemberTest, AMemberThatIsNotThereComesBehindTheLast) {
  EXPECT_EQ(WithMember("{\n  \"a\": 1.50\n}\n", "b", "[2]"), "{\n  \"a\": 1.50,\n  \"b\": [2]\n}\n");
  EXPECT_EQ(WithMember("{}", "b", "2"), "{\n  \"b\": 2\n}");
}

}  // namespace
}  // namespace eps::cli
