#include "common/base/flags.h"

#include <cstdint>
#include <string>

#include "gtest/gtest.h"

namespace eps {
namespace {

// The text of the refusal, "" if the value was taken.
template <typename Value>
std::string Parse(CLI::Validator transform, const std::string& text, Value& value) {
  CLI::App app;
  app.add_option("--flag", value)->transform(transform);
  std::vector<std::string> arguments = {text, "--flag"};  // CLI11 takes them from the back
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    return error.what();
  }
  return "";
}

TEST(FlagsTest, AByteSizeBecomesBytes) {
  int64_t num_bytes = 0;
  EXPECT_EQ(Parse(AsByteSize(), "1.5MiB", num_bytes), "");
  EXPECT_EQ(num_bytes, 1536 * 1024);
}

TEST(FlagsTest, WhatIsNoByteSizeIsRefusedAndTheOptionNamed) {
  for (const char* text : {"", "0", "12 parsecs", "-1", "1e300GiB", "nan"}) {
    int64_t num_bytes = 0;
    EXPECT_NE(Parse(AsByteSize(), text, num_bytes).find("--flag"), std::string::npos) << "\"" << text << "\"";
  }
}

TEST(FlagsTest, ANumberInARangeIsANumber) {
  double value = 0;
  EXPECT_EQ(Parse(NumberIn(0, 100), "1e2", value), "");
  EXPECT_EQ(value, 100);
  for (const char* text : {"", "nan", "-nan", "inf", "-0.001", "100.001", "x"}) {
    EXPECT_NE(Parse(NumberIn(0, 100), text, value).find("--flag"), std::string::npos) << "\"" << text << "\"";
  }
}

TEST(FlagsTest, AnAddressHasAHostAndAPort) {
  std::string address;
  for (const char* text : {"127.0.0.1:1", "[::1]:65535", "host:50051"}) {
    EXPECT_EQ(Parse(IsAddress(), text, address), "");
    EXPECT_EQ(address, text);
  }
  for (const char* text : {"", "host", ":80", "host:", "host:0", "host:65536", "host:-1", "host:80x"}) {
    EXPECT_NE(Parse(IsAddress(), text, address).find("--flag"), std::string::npos) << "\"" << text << "\"";
  }
  EXPECT_NE(Parse(IsAddress(), "http://127.0.0.1:7071", address).find("want HOST:PORT, without http://"),
            std::string::npos);
}

}  // namespace
}  // namespace eps
