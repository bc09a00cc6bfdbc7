#include "common/security/token.h"

#include <string>
#include <utility>
#include <vector>

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

TEST(TokenTest, AFileSaysWhomADaemonLetsInAndAClientShowsTheFirst) {
  const TempDir dir;
  const std::string a(43, 'a'), b(64, 'b'), c(50, 'c');
  ASSERT_OK(WriteSecretFile(dir.File("tokens"),
                            "# who is let in\n\n" + a + " worker\n  " + b + "\tviewer \r\n" + c + "\n#" + a));
  ASSERT_OK_AND_ASSIGN(const std::vector<KnownToken> tokens, ReadTokens(dir.File("tokens")));
  ASSERT_EQ(tokens.size(), 3u);
  EXPECT_EQ(tokens[0].token, a);
  EXPECT_EQ(tokens[0].role, Role::kWorker);
  EXPECT_EQ(tokens[1].token, b);
  EXPECT_EQ(tokens[1].role, Role::kViewer);
  EXPECT_EQ(tokens[2].token, c);
  EXPECT_EQ(tokens[2].role, Role::kOperator);  // as all were before there were roles
  ASSERT_OK_AND_ASSIGN(const std::string shown, ReadTokenFile(dir.File("tokens")));
  EXPECT_EQ(shown, a);
}

TEST(TokenTest, AFileHoldsSoManyTokensAndNoMore) {
  const TempDir dir;
  std::string lines;
  for (int i = 0; i < 256; ++i) lines += std::string(43, 'x') + std::to_string(i) + "\n";
  ASSERT_OK(WriteSecretFile(dir.File("most"), lines));
  ASSERT_OK_AND_ASSIGN(const std::vector<KnownToken> tokens, ReadTokens(dir.File("most")));
  EXPECT_EQ(tokens.size(), 256u);
  ASSERT_OK(WriteSecretFile(dir.File("more"), lines + std::string(43, 'y')));
  EXPECT_THAT(ReadTokens(dir.File("more")).status(), StatusIs(StatusCode::kInvalidArgument, "more:257: more than 256"));
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
                                                     {"role", secret + " Worker"},
                                                     {"roles", secret + " worker viewer"},
                                                     {"second", std::string(43, 'a') + "\n" + secret + " no role"},
                                                     {"none", "# " + secret + "\n"}};
  for (const auto& [name, content] : bad) {
    ASSERT_OK(WriteSecretFile(dir.File(name), content));
    const absl::Status status = ReadTokenFile(dir.File(name)).status();
    EXPECT_THAT(status, StatusIs(StatusCode::kInvalidArgument, dir.File(name))) << name;
    EXPECT_EQ(status.message().find("hunter2"), absl::string_view::npos) << name;
  }
}

}  // namespace
}  // namespace eps
