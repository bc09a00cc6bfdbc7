#include "eps_server/service/check_doors.h"

#include "absl/status/status.h"
#include "common/base/listen_address.h"
#include "common/grpc/doors.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

using absl::StatusCode;

TEST(CheckDoorsTest, AddressesOfOtherMachinesNeedBothTlsAndKnownPeers) {
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

}  // namespace
}  // namespace eps::server
