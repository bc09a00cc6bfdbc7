#include "eps_server/service/listen_address.h"

#include <string>

#include "absl/status/status.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
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

TEST(ListenAddressTest, AddressesOfOtherMachinesNeedBothTlsAndKnownPeers) {
  const ServerDoors none, token = {.token_file = "t"}, tls = {.certificate_file = "c", .key_file = "k"},
                          tls_and_token = {.certificate_file = "c", .key_file = "k", .token_file = "t"},
                          tls_and_ca = {.certificate_file = "c", .key_file = "k", .client_ca_file = "a"};
  for (const char* text : {"0.0.0.0:1", "10.0.0.1:1", "[::]:1", "128.0.0.1:1", "[::ffff:8.8.8.8]:1", "[fe80::1]:1"}) {
    ASSERT_OK_AND_ASSIGN(const ListenAddress address, ParseListenAddress(text));
    EXPECT_THAT(CheckDoors(address, none), StatusIs(StatusCode::kInvalidArgument, "--tls-cert FILE")) << text;
    EXPECT_THAT(CheckDoors(address, token), StatusIs(StatusCode::kInvalidArgument, "give --tls-cert FILE")) << text;
    EXPECT_THAT(CheckDoors(address, tls), StatusIs(StatusCode::kInvalidArgument, "give --token-file FILE")) << text;
    EXPECT_OK(CheckDoors(address, tls_and_token)) << text;
    EXPECT_OK(CheckDoors(address, tls_and_ca)) << text;
  }
  ASSERT_OK_AND_ASSIGN(const ListenAddress loopback, ParseListenAddress("127.0.0.1:1"));
  for (const ServerDoors& doors : {none, token, tls}) EXPECT_OK(CheckDoors(loopback, doors));
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
}  // namespace eps::server
