#include "common/grpc/client_credentials.h"

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

TEST(ClientCredentialsTest, EachFileWhoseCertificateEndsWithinTwoWeeksIsNamed) {
  const TempDir dir;
  const absl::Time now = absl::Now();
  const auto ca_for = [&](int days) {
    const KeySet set = MakeKeySet({.hosts = {"localhost"}, .from = now, .until = now + days * absl::Hours(24)}).value();
    const std::string file = dir.File(absl::StrCat(days, ".crt"));
    EXPECT_OK(WriteSecretFile(file, set.ca_certificate));
    return file;
  };
  const std::string ca = ca_for(300), ca_soon = ca_for(3);
  ::testing::internal::CaptureStderr();
  EXPECT_OK(NewChannelCredentials({.ca_file = ca_soon}, "node7:7070", now + absl::Hours(1)));
  EXPECT_OK(NewChannelCredentials({.ca_file = ca}, "node7:7070", now + absl::Hours(1)));
  const auto warning = [](const std::string& file) {
    return absl::StrCat("certificate_expires_soon file=", file, " ");
  };
  EXPECT_THAT(::testing::internal::GetCapturedStderr(),
              AllOf(HasSubstr(warning(ca_soon)), Not(HasSubstr(warning(ca)))));
}

}  // namespace
}  // namespace eps
