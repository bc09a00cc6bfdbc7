#include "common/grpc/credentials.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/security/key_set.h"
#include "common/security/secret_file.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class CredentialsTest : public testing::Test {
 protected:
  static KeySet KeysFor(int days) {
    const absl::Time now = absl::Now();
    return MakeKeySet({.hosts = {"localhost"}, .from = now - absl::Hours(1), .until = now + days * absl::Hours(24)})
        .value();
  }
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_OK(WriteSecretFile(dir_.File(name), content));
    return dir_.File(name);
  }
  const TempDir dir_;
};

TEST_F(CredentialsTest, EachFileWhoseCertificateEndsWithinTwoWeeksIsNamed) {
  const KeySet longer = KeysFor(300), soon = KeysFor(3);
  const std::string certificate = Write("server.crt", longer.server_certificate + soon.ca_certificate),
                    key = Write("server.key", longer.server_key), ca = Write("ca.crt", longer.ca_certificate),
                    ca_soon = Write("ca-soon.crt", soon.ca_certificate);
  const auto warning = [](const std::string& file) {
    return absl::StrCat("certificate_expires_soon file=", file, " ");
  };
  ::testing::internal::CaptureStderr();
  EXPECT_OK(
      NewServerCredentials({.certificate_file = certificate, .key_file = key, .client_ca_file = ca_soon}, absl::Now()));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(warning(certificate)), HasSubstr(warning(ca_soon))));
  ::testing::internal::CaptureStderr();
  EXPECT_OK(NewChannelCredentials({.ca_file = ca_soon}, "node7:7070", absl::Now()));
  EXPECT_OK(NewChannelCredentials({.ca_file = ca}, "node7:7070", absl::Now()));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(warning(ca_soon)), Not(HasSubstr(warning(ca)))));
}

}  // namespace
}  // namespace eps
