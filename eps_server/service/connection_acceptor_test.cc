#include "eps_server/service/connection_acceptor.h"

#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(ConnectionAcceptorTest, AnIpv6NetworkOf64BitsCountsAsOneHost) {
  EXPECT_EQ(CountedAs("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
  EXPECT_EQ(CountedAs("2001:db8:1:2::9"), "2001:db8:1:2::/64");
  EXPECT_NE(CountedAs("2001:db8:1:3::9"), CountedAs("2001:db8:1:2::9"));
  for (const char* each : {"10.0.0.7", "10.0.0.8", "127.0.0.1", "::1"}) EXPECT_EQ(CountedAs(each), each);
}

}  // namespace
}  // namespace eps::server
