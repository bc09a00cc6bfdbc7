#include "common/grpc/server_keys.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/security/key_set.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

const std::string kOne(43, '1'), kTwo(43, '2');

class ServerKeysTest : public testing::Test {
 protected:
  KeySet KeysFor(int days) const {
    return MakeKeySet({.hosts = {"localhost"}, .from = now_ - absl::Hours(1), .until = now_ + days * absl::Hours(24)})
        .value();
  }
  std::string Write(const std::string& name, const std::string& content) {
    std::ofstream(dir_.File(name), std::ios::trunc) << content;
    EXPECT_EQ(chmod(dir_.File(name).c_str(), 0600), 0);
    return dir_.File(name);
  }
  // With nobody who looks but the test.
  void Begin(const ServerDoors& doors) {
    ASSERT_OK_AND_ASSIGN(watch_, ServerKeysWatch::Begin(doors, now_, absl::InfiniteDuration()));
  }
  // What a look logs.
  std::string Look(absl::Duration later = absl::ZeroDuration()) {
    ::testing::internal::CaptureStderr();
    watch_->Look(now_ + later);
    return ::testing::internal::GetCapturedStderr();
  }
  std::string first_token() const { return watch_->tokens()->front().token; }

  const absl::Time now_ = absl::Now();
  const TempDir dir_;
  std::shared_ptr<ServerKeysWatch> watch_;
};

TEST_F(ServerKeysTest, AChangeIsTakenOnceItHasStayedForALook) {
  const std::string file = Write("tokens", kOne);
  Begin({.token_file = file});
  const auto first = watch_->tokens();
  EXPECT_THAT(Look(), IsEmpty());
  EXPECT_EQ(watch_->tokens(), first);
  Write("tokens", kTwo + "\n" + kOne);
  EXPECT_THAT(Look(), IsEmpty());
  Write("tokens", kTwo);
  EXPECT_THAT(Look(), IsEmpty());  // still being written
  EXPECT_EQ(watch_->tokens(), first);
  EXPECT_THAT(Look(), HasSubstr("keys_reloaded what=tokens operators=1 workers=0 viewers=0"));
  EXPECT_EQ(first_token(), kTwo);
  EXPECT_THAT(Look(), IsEmpty());
}

TEST_F(ServerKeysTest, WhatCannotBeTakenChangesNothingIsToldOnceAndTriedAnew) {
  const std::string file = Write("tokens", kOne);
  Begin({.token_file = file});
  ASSERT_EQ(unlink(file.c_str()), 0);
  Look();
  EXPECT_THAT(Look(), AllOf(HasSubstr("WARNING keys_not_reloaded"), HasSubstr(file)));
  EXPECT_NE(watch_->state().not_reloaded, "");
  EXPECT_EQ(first_token(), kOne);
  EXPECT_THAT(Look(), IsEmpty());
  Write("tokens", kTwo + " king");
  Look();
  EXPECT_THAT(Look(), AllOf(HasSubstr("keys_not_reloaded"), HasSubstr("its role"), Not(HasSubstr(kTwo))));
  Write("tokens", kTwo);
  Look();
  EXPECT_THAT(Look(), HasSubstr("keys_reloaded"));
  EXPECT_EQ(watch_->state().not_reloaded, "");
  EXPECT_EQ(first_token(), kTwo);
}

TEST_F(ServerKeysTest, ACertificateThatIsNotValidYetIsTakenWhenItIs) {
  const KeySet keys = KeysFor(300);
  const ServerDoors doors = {.certificate_file = Write("server.crt", keys.server_certificate),
                             .key_file = Write("server.key", keys.server_key)};
  Begin(doors);
  const KeySet later =
      MakeKeySet({.hosts = {"localhost", "node7"}, .from = now_ + absl::Hours(2), .until = now_ + absl::Hours(9000)})
          .value();
  Write("server.crt", later.server_certificate);
  Write("server.key", later.server_key);
  Look();
  EXPECT_THAT(Look(), HasSubstr("valid only from"));
  EXPECT_THAT(Look(absl::Hours(3)), HasSubstr("keys_reloaded"));
  EXPECT_EQ(watch_->certificates()->pair.certificate, later.server_certificate);
}

TEST_F(ServerKeysTest, EachFileWhoseCertificateEndsWithinTwoWeeksIsNamedEachDay) {
  const KeySet longer = KeysFor(300), soon = KeysFor(3);
  const std::string certificate = Write("server.crt", longer.server_certificate + soon.ca_certificate),
                    key = Write("server.key", longer.server_key), ca_soon = Write("ca-soon.crt", soon.ca_certificate);
  const auto warning = [](const std::string& file) {
    return HasSubstr(absl::StrCat("certificate_expires_soon file=", file, " "));
  };
  ::testing::internal::CaptureStderr();
  Begin({.certificate_file = certificate, .key_file = key, .client_ca_file = ca_soon});
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), AllOf(warning(certificate), warning(ca_soon)));
  EXPECT_THAT(Look(absl::Hours(23)), IsEmpty());
  EXPECT_THAT(Look(absl::Hours(25)), AllOf(warning(certificate), warning(ca_soon)));
  EXPECT_THAT(Look(absl::Hours(26)), IsEmpty());
  EXPECT_LT(watch_->certificates()->expires(), now_ + absl::Hours(3 * 24 + 1));
  // A CA alone tells its end; of several nobody knows which is needed.
  Write("server.crt", longer.server_certificate);
  Write("ca-soon.crt", soon.ca_certificate + longer.ca_certificate);
  Look();
  EXPECT_THAT(Look(), AllOf(HasSubstr("keys_reloaded"), Not(HasSubstr("expires_soon"))));
  EXPECT_GT(watch_->certificates()->expires(), now_ + absl::Hours(299 * 24));
}

TEST_F(ServerKeysTest, ATokenIsTakenBackAlsoWhereCertificatesCannotBeTaken) {
  const KeySet keys = KeysFor(300), other = KeysFor(300);
  Begin({.certificate_file = Write("server.crt", keys.server_certificate),
         .key_file = Write("server.key", keys.server_key),
         .token_file = Write("tokens", kOne + "\n" + kTwo)});
  Write("server.crt", other.server_certificate + other.ca_certificate);  // its key is not there
  Write("tokens", kTwo);
  Look();
  EXPECT_THAT(Look(), AllOf(HasSubstr("is not the key of"),
                            HasSubstr("keys_reloaded what=tokens operators=1 workers=0 viewers=0")));
  EXPECT_EQ(first_token(), kTwo);
  EXPECT_NE(watch_->state().not_reloaded, "");
  EXPECT_EQ(watch_->certificates()->pair.certificate, keys.server_certificate);
}

TEST_F(ServerKeysTest, FilesThatNeverRestAreTakenAllTheSame) {
  Begin({.token_file = Write("tokens", kOne + "\n" + kTwo)});
  for (int i = 1; i < 5; ++i) {
    Write("tokens", kTwo + std::string(static_cast<size_t>(i), '\n'));
    EXPECT_THAT(Look(), IsEmpty()) << i;
  }
  Write("tokens", kTwo + " viewer");
  EXPECT_THAT(Look(), HasSubstr("keys_reloaded what=tokens"));
  EXPECT_EQ(first_token(), kTwo);
}

TEST_F(ServerKeysTest, TheEndOfACertificateIsToldWhenItComes) {
  const KeySet soon = KeysFor(1);
  Begin({.certificate_file = Write("server.crt", soon.server_certificate),
         .key_file = Write("server.key", soon.server_key)});
  EXPECT_THAT(Look(absl::Hours(23)), IsEmpty());
  EXPECT_THAT(Look(absl::Hours(24) + absl::Seconds(1)), HasSubstr("ERROR certificate_expired file="));
  EXPECT_THAT(Look(absl::Hours(25)), IsEmpty());
}

TEST_F(ServerKeysTest, AThreadLooks) {
  const std::string file = Write("tokens", kOne);
  ASSERT_OK_AND_ASSIGN(watch_, ServerKeysWatch::Begin({.token_file = file}, now_, absl::Milliseconds(5)));
  Write("tokens", kTwo + "\n");
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  while (first_token() != kTwo) ASSERT_LT(absl::Now(), deadline);
}

TEST_F(ServerKeysTest, WithoutTlsNothingExpires) {
  Begin({});
  EXPECT_EQ(watch_->certificates()->expires(), absl::InfiniteFuture());
  EXPECT_THAT(*watch_->tokens(), IsEmpty());
}

}  // namespace
}  // namespace eps
