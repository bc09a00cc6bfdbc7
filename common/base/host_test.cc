#include "common/base/host.h"

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(HostTest, TheHostOfAnAddressHasNoPortAndNoBrackets) {
  EXPECT_EQ(HostOf("127.0.0.1:70"), "127.0.0.1");
  EXPECT_EQ(HostOf("[::1]:70"), "::1");
  EXPECT_EQ(HostOf("node7.cluster:70"), "node7.cluster");
  EXPECT_EQ(HostOf("[]:1"), "");
}

TEST(HostTest, TheMachineHasANameThatCanBePrinted) {
  const std::string name = HostName();
  EXPECT_LE(name.size(), 64u);
  for (const char c : name) EXPECT_TRUE(c > ' ' && c < 0x7f) << name;
}

TEST(HostTest, ThisProcessHasANetworkOfItsOwnOrSharesOne) {
  EXPECT_TRUE(NetworkIdentity().empty() || NetworkIdentity().rfind("net:[", 0) == 0) << NetworkIdentity();
  EXPECT_EQ(NetworkIdentity(), NetworkIdentity());
}

TEST(HostTest, TheProcessorsNameIsOneLine) {
  const std::string name = ProcessorName();
  EXPECT_EQ(name.find_first_of("\n:\t"), std::string::npos) << name;
#if defined(__x86_64__)
  EXPECT_NE(name, "");
#endif
}

TEST(HostTest, OnlyLoopbackIsLoopback) {
  for (const char* host : {"127.0.0.1", "127.9.9.9", "::1", "localhost"}) EXPECT_TRUE(IsLoopbackHost(host)) << host;
  for (const char* host :
       {"", "0.0.0.0", "::", "10.0.0.1", "128.0.0.1", "localhost.example", "::ffff:10.0.0.1", "127"}) {
    EXPECT_FALSE(IsLoopbackHost(host)) << host;
  }
}

TEST(HostTest, NamesAreNoAddresses) {
  EXPECT_TRUE(IsAddressLiteral("10.0.0.1"));
  EXPECT_TRUE(IsAddressLiteral("fe80::1"));
  for (const char* host : {"", "localhost", "10.0.0", "10.0.0.1.example"}) EXPECT_FALSE(IsAddressLiteral(host)) << host;
}

}  // namespace
}  // namespace eps
