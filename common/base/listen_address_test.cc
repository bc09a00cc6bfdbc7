#include "common/base/listen_address.h"

#include <string>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

TEST(ListenAddressTest, LoopbackAddressesAreTaken) {
  ASSERT_OK_AND_ASSIGN(const ListenAddress v4, ParseListenAddress("127.0.0.1:0"));
  EXPECT_EQ(v4.ToString(), "127.0.0.1:0");
  ASSERT_OK_AND_ASSIGN(const ListenAddress other, ParseListenAddress("127.3.4.5:99"));
  EXPECT_EQ(other.port, 99);
  ASSERT_OK_AND_ASSIGN(const ListenAddress v6, ParseListenAddress("[::1]:7"));
  EXPECT_EQ(v6.ToString(), "[::1]:7");
  ASSERT_OK_AND_ASSIGN(const ListenAddress name, ParseListenAddress("localhost:65535"));
  EXPECT_EQ(name.ToString(), "127.0.0.1:65535");
}

TEST(ListenAddressTest, OnlyLoopbackIsLoopback) {
  for (const char* text : {"127.0.0.1:1", "127.3.4.5:1", "[::1]:1", "localhost:1"}) {
    EXPECT_TRUE(ParseListenAddress(text)->is_loopback()) << text;
  }
  for (const char* text : {"0.0.0.0:1", "[::]:1", "128.0.0.1:1"}) {
    EXPECT_FALSE(ParseListenAddress(text)->is_loopback()) << text;
  }
}

TEST(ListenAddressTest, TheSystemsFormHasAllOfIt) {
  for (const char* text : {"127.0.0.1:80", "10.0.0.7:65535", "[::1]:7", "[fe80::1]:0"}) {
    const ListenAddress address = *ParseListenAddress(text);
    EXPECT_EQ(FromSocketAddress(ToSocketAddress(address)), address) << text;
  }
  EXPECT_EQ(FromSocketAddress(ToSocketAddress({.host = "::ffff:10.0.0.7", .port = 5})).ToString(), "10.0.0.7:5");
}

TEST(ListenAddressTest, NonsenseIsRefused) {
  for (const char* text : {"", "127.0.0.1", ":5", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:-1", "127.0.0.1:65536"}) {
    EXPECT_THAT(ParseListenAddress(text), StatusIs(StatusCode::kInvalidArgument, "want HOST:PORT")) << text;
  }
  // A name may stand for several addresses, of which one would be left open.
  for (const char* text : {"example.com:1", "[localhost:1", "10.0.0:1", "*:1"}) {
    EXPECT_THAT(ParseListenAddress(text), StatusIs(StatusCode::kInvalidArgument, "want an address")) << text;
  }
}

}  // namespace
}  // namespace eps
