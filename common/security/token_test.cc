#include "common/security/token.h"

#include <string>

#include "absl/status/status.h"
#include "common/security/secret_file.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

TEST(TokenTest, EachNewTokenIsAnother) {
  ASSERT_OK_AND_ASSIGN(const std::string a, NewToken());
  ASSERT_OK_AND_ASSIGN(const std::string b, NewToken());
  EXPECT_EQ(a.size(), 64u);
  EXPECT_NE(a, b);
  EXPECT_EQ(a.find_first_not_of("0123456789abcdef"), std::string::npos);
}

TEST(TokenTest, OnlyTheSameTokensAreEqual) {
  ASSERT_OK_AND_ASSIGN(const std::string token, NewToken());
  EXPECT_TRUE(TokensEqual(token, token));
  for (size_t i = 0; i < token.size(); ++i) {
    std::string other = token;
    other[i] ^= 1;
    EXPECT_FALSE(TokensEqual(token, other)) << i;
  }
  EXPECT_FALSE(TokensEqual(token, token.substr(0, 63)));
  EXPECT_FALSE(TokensEqual(token, token + "0"));
  EXPECT_FALSE(TokensEqual(token, ""));
}

TEST(TokenTest, AFileHoldsOneToken) {
  const TempDir dir;
  ASSERT_OK_AND_ASSIGN(const std::string token, NewToken());
  ASSERT_OK(WriteSecretFile(dir.File("hex"), token + "\n"));
  EXPECT_THAT(ReadTokenFile(dir.File("hex")), testing::ResultOf([](const auto& r) { return r.value(); }, token));
  ASSERT_OK(WriteSecretFile(dir.File("base64"), "q83vEjRWeJCrze8SNFZ4kKvN7xI0VniQq83vEjRWeJA=\r\n"));
  EXPECT_OK(ReadTokenFile(dir.File("base64")));
}

TEST(TokenTest, WhatIsNoTokenIsRefusedAndNotRepeated) {
  const TempDir dir;
  const std::string secret = "hunter2hunter2hunter2hunter2hunter2hunter2hunter2";
  const std::pair<const char*, std::string> bad[] = {{"empty", ""},
                                                     {"short", secret.substr(0, 42)},
                                                     {"long", std::string(1025, 'a')},
                                                     {"two", secret + "\n" + secret + "\n"},
                                                     {"space", secret + " " + secret},
                                                     {"control", secret + std::string(1, '\1')},
                                                     {"leading", "\n" + secret}};
  for (const auto& [name, content] : bad) {
    ASSERT_OK(WriteSecretFile(dir.File(name), content));
    const absl::Status status = ReadTokenFile(dir.File(name)).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, dir.File(name))) << name;
    EXPECT_EQ(status.message().find("hunter2"), absl::string_view::npos) << name;
  }
}

}  // namespace
}  // namespace eps
