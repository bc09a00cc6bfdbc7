#include "common/security/key_set.h"

#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/security/certificates.h"
#include "common/security/openssl_ptr.h"
#include "common/security/secret_file.h"
#include "common/security/token.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

CertificatePtr Read(const std::string& pem) {
  const BioPtr reader(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  return CertificatePtr(PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr));
}

// X509_V_OK, or why `certificate` does not stand for `purpose` under `ca`.
int Verify(const std::string& certificate, const std::string& ca, int purpose) {
  X509_STORE* const store = X509_STORE_new();
  X509_STORE_CTX* const context = X509_STORE_CTX_new();
  const CertificatePtr root = Read(ca), leaf = Read(certificate);
  X509_STORE_add_cert(store, root.get());
  X509_STORE_CTX_init(context, store, leaf.get(), nullptr);
  X509_STORE_CTX_set_flags(context, X509_V_FLAG_X509_STRICT);
  X509_STORE_CTX_set_purpose(context, purpose);
  X509_verify_cert(context);
  const int error = X509_STORE_CTX_get_error(context);
  X509_STORE_CTX_free(context);
  X509_STORE_free(store);
  return error;
}

class KeySetTest : public testing::Test {
 protected:
  static KeySet Make(absl::Time from = absl::Now() - absl::Hours(1), absl::Time until = absl::Now() + absl::Hours(1)) {
    return MakeKeySet({.hosts = {"node7.cluster", "10.0.0.7", "fd00::7"}, .from = from, .until = until}).value();
  }
  std::string Write(const std::string& name, const std::string& content) {
    EXPECT_OK(WriteSecretFile(dir_.File(name), content));
    return dir_.File(name);
  }
  const TempDir dir_;
};

TEST_F(KeySetTest, EachCertificateStandsForItsPurposeAndNoOther) {
  const KeySet set = Make();
  EXPECT_EQ(Verify(set.server_certificate, set.ca_certificate, X509_PURPOSE_SSL_SERVER), X509_V_OK);
  EXPECT_EQ(Verify(set.client_certificate, set.ca_certificate, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
  EXPECT_NE(Verify(set.server_certificate, set.ca_certificate, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
  EXPECT_NE(Verify(set.client_certificate, set.ca_certificate, X509_PURPOSE_SSL_SERVER), X509_V_OK);
}

TEST_F(KeySetTest, ACertificateOfAnotherSetIsNone) {
  const KeySet set = Make(), other = Make();
  EXPECT_NE(Verify(other.server_certificate, set.ca_certificate, X509_PURPOSE_SSL_SERVER), X509_V_OK);
  EXPECT_NE(Verify(other.client_certificate, set.ca_certificate, X509_PURPOSE_SSL_CLIENT), X509_V_OK);
  EXPECT_NE(set.operator_token, other.operator_token);
}

TEST_F(KeySetTest, AKeyThatIsTooShortForTlsIsRefusedAndNotLeftToGrpc) {
  const KeyPtr key(EVP_RSA_gen(1024));
  const CertificatePtr certificate(X509_new());
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -60);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), 3600);
  X509_set_pubkey(certificate.get(), key.get());
  ASSERT_NE(X509_sign(certificate.get(), key.get(), EVP_sha256()), 0);
  const auto pem = [](const auto& write) {
    const BioPtr bio(BIO_new(BIO_s_mem()));
    EXPECT_EQ(write(bio.get()), 1);
    char* data = nullptr;
    const auto size = static_cast<size_t>(BIO_get_mem_data(bio.get(), &data));
    return std::string(data, size);
  };
  const std::string file = Write("weak.crt", pem([&](BIO* bio) { return PEM_write_bio_X509(bio, certificate.get()); }));
  const std::string key_file = Write(
      "weak.key",
      pem([&](BIO* bio) { return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr); }));
  EXPECT_THAT(LoadKeyPair(file, key_file, Purpose::kServer, absl::Now()),
              StatusIs(StatusCode::kInvalidArgument, "ee key too small"));
}

TEST_F(KeySetTest, EachRoleHasATokenAndTheDaemonKnowsThem) {
  const KeySet set = Make();
  const TempDir dir;
  ASSERT_OK(WriteSecretFile(dir.File("tokens"), set.TokenLines()));
  ASSERT_OK_AND_ASSIGN(const std::vector<KnownToken> known, ReadTokens(dir.File("tokens")));
  ASSERT_EQ(known.size(), 3u);
  EXPECT_EQ(known[0].token, set.operator_token);
  EXPECT_EQ(known[0].role, Role::kOperator);
  EXPECT_EQ(known[1].token, set.worker_token);
  EXPECT_EQ(known[1].role, Role::kWorker);
  EXPECT_EQ(known[2].token, set.viewer_token);
  EXPECT_EQ(known[2].role, Role::kViewer);
}

TEST_F(KeySetTest, TheServersCertificateNamesItsHosts) {
  const CertificatePtr server = Read(Make().server_certificate);
  EXPECT_EQ(X509_check_host(server.get(), "node7.cluster", 0, 0, nullptr), 1);
  EXPECT_EQ(X509_check_ip_asc(server.get(), "10.0.0.7", 0), 1);
  EXPECT_EQ(X509_check_ip_asc(server.get(), "fd00::7", 0), 1);
  EXPECT_EQ(X509_check_host(server.get(), "node8.cluster", 0, 0, nullptr), 0);
  EXPECT_EQ(X509_check_ip_asc(server.get(), "10.0.0.8", 0), 0);
}

TEST_F(KeySetTest, WhatIsNoHostIsRefused) {
  // The commas and colons would be read as further names.
  for (const char* host : {"", "a,DNS:b", "10.0.0.7:7070", "[::1]", "a b", "email:x", "*", "*.", "-a", "a/b", "\n"}) {
    EXPECT_THAT(MakeKeySet({.hosts = {host}, .from = absl::Now(), .until = absl::Now() + absl::Hours(1)}),
                StatusIs(StatusCode::kInvalidArgument, "--host"))
        << host;
  }
  EXPECT_OK(MakeKeySet({.hosts = {"*.cluster"}, .from = absl::Now(), .until = absl::Now() + absl::Hours(1)}));
}

TEST_F(KeySetTest, ItsFilesAreTakenByTheirReaders) {
  const absl::Time until = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now())) + absl::Hours(1);
  const KeySet set = Make(absl::Now() - absl::Hours(1), until);
  ASSERT_OK_AND_ASSIGN(const KeyPair pair,
                       LoadKeyPair(Write("server.crt", set.server_certificate), Write("server.key", set.server_key),
                                   Purpose::kServer, absl::Now()));
  EXPECT_EQ(pair.expires, until);
  ASSERT_OK_AND_ASSIGN(const CaCertificates ca, LoadCa(Write("ca.crt", set.ca_certificate), absl::Now()));
  EXPECT_EQ(ca.pem, set.ca_certificate);
  EXPECT_EQ(ca.expires, until);
}

using CertificatesTest = KeySetTest;

TEST_F(CertificatesTest, AKeyOfAnotherCertificateIsNamed) {
  const KeySet set = Make();
  const std::string certificate = Write("server.crt", set.server_certificate),
                    key = Write("client.key", set.client_key);
  EXPECT_THAT(LoadKeyPair(certificate, key, Purpose::kServer, absl::Now()),
              StatusIs(StatusCode::kInvalidArgument, key + ": is not the key of " + certificate));
}

TEST_F(CertificatesTest, DatesAreCompared) {
  const KeySet set = Make();
  const std::string certificate = Write("server.crt", set.server_certificate),
                    key = Write("server.key", set.server_key);
  EXPECT_THAT(LoadKeyPair(certificate, key, Purpose::kServer, absl::Now() + absl::Hours(2)),
              StatusIs(StatusCode::kInvalidArgument, certificate + ": expired on"));
  EXPECT_THAT(LoadKeyPair(certificate, key, Purpose::kServer, absl::Now() - absl::Hours(2)),
              StatusIs(StatusCode::kInvalidArgument, certificate + ": valid only from"));
  const std::string ca = Write("ca.crt", set.ca_certificate);
  EXPECT_THAT(LoadCa(ca, absl::Now() + absl::Hours(2)), StatusIs(StatusCode::kInvalidArgument, ca + ": expired on"));
}

TEST_F(CertificatesTest, TheFirstOfAChainToExpireIsTold) {
  const absl::Time from = absl::Now() - absl::Hours(1),
                   soon = absl::FromUnixSeconds(absl::ToUnixSeconds(absl::Now())) + absl::Hours(1);
  const KeySet set = Make(from, soon + absl::Hours(7)), above = Make(from, soon);
  const std::string chain = Write("chain.crt", set.server_certificate + above.ca_certificate);
  ASSERT_OK_AND_ASSIGN(const KeyPair pair,
                       LoadKeyPair(chain, Write("server.key", set.server_key), Purpose::kServer, absl::Now()));
  EXPECT_EQ(pair.expires, soon);
  // Of several CAs one that nobody needs may end.
  ASSERT_OK_AND_ASSIGN(const CaCertificates bundle,
                       LoadCa(Write("ca.crt", set.ca_certificate + above.ca_certificate), absl::Now()));
  EXPECT_EQ(bundle.expires, absl::InfiniteFuture());
}

TEST_F(CertificatesTest, WhatIsNotWhatItShouldBeIsNamed) {
  const KeySet set = Make();
  const std::string certificate = Write("server.crt", set.server_certificate),
                    key = Write("server.key", set.server_key);
  const std::string text = Write("text", "hello"), empty = Write("empty", "");
  for (const std::string& bad : {text, empty, key}) {
    EXPECT_THAT(LoadKeyPair(bad, key, Purpose::kServer, absl::Now()), StatusIs(StatusCode::kInvalidArgument, bad))
        << bad;
    EXPECT_THAT(LoadCa(bad, absl::Now()), StatusIs(StatusCode::kInvalidArgument, bad)) << bad;
  }
  for (const std::string& bad : {text, empty, certificate}) {
    EXPECT_THAT(LoadKeyPair(certificate, bad, Purpose::kServer, absl::Now()),
                StatusIs(StatusCode::kInvalidArgument, bad))
        << bad;
  }
  EXPECT_THAT(LoadKeyPair(dir_.File("none"), key, Purpose::kServer, absl::Now()),
              StatusIs(StatusCode::kNotFound, "none"));
  EXPECT_THAT(LoadKeyPair(certificate, dir_.File("none"), Purpose::kServer, absl::Now()),
              StatusIs(StatusCode::kNotFound, "none"));
  EXPECT_THAT(LoadCa(certificate, absl::Now()), StatusIs(StatusCode::kInvalidArgument, "not the certificate of a CA"));
  const std::string leaves = Write("leaves.crt", set.server_certificate + set.client_certificate);
  EXPECT_THAT(LoadCa(leaves, absl::Now()), StatusIs(StatusCode::kInvalidArgument, "not the certificate of a CA"));
  EXPECT_OK(LoadCa(Write("one.crt", set.server_certificate + set.ca_certificate), absl::Now()));
  const std::string zero = Write("zero.crt", set.ca_certificate + std::string(1, '\0') + set.ca_certificate);
  EXPECT_THAT(LoadCa(zero, absl::Now()), StatusIs(StatusCode::kInvalidArgument, "zero byte"));
}

TEST_F(CertificatesTest, OneForTheOtherSideIsRefused) {
  const KeySet set = Make();
  const std::string server = Write("server.crt", set.server_certificate),
                    client = Write("client.crt", set.client_certificate),
                    server_key = Write("server.key", set.server_key), client_key = Write("client.key", set.client_key);
  EXPECT_OK(LoadKeyPair(client, client_key, Purpose::kClient, absl::Now()));
  EXPECT_THAT(LoadKeyPair(client, client_key, Purpose::kServer, absl::Now()),
              StatusIs(StatusCode::kInvalidArgument, client + ": is not for a server"));
  EXPECT_THAT(LoadKeyPair(server, server_key, Purpose::kClient, absl::Now()),
              StatusIs(StatusCode::kInvalidArgument, server + ": is not for a client"));
}

TEST_F(CertificatesTest, OneThatEveryUserMayWriteIsRefused) {
  const std::string ca = Write("ca.crt", Make().ca_certificate);
  ASSERT_EQ(chmod(ca.c_str(), 0666), 0);
  EXPECT_THAT(LoadCa(ca, absl::Now()), StatusIs(StatusCode::kFailedPrecondition, "chmod o-w " + ca));
  ASSERT_EQ(chmod(ca.c_str(), 0664), 0);
  EXPECT_OK(LoadCa(ca, absl::Now()));
}

TEST_F(CertificatesTest, ADamagedCertificateIsNamed) {
  std::string pem = Make().ca_certificate;
  pem[pem.size() / 2] = '!';
  const std::string file = Write("ca.crt", pem);
  EXPECT_THAT(LoadCa(file, absl::Now()), StatusIs(StatusCode::kInvalidArgument, file));
}

TEST_F(CertificatesTest, AKeyWithAPassphraseIsRefusedInsteadOfAskedFor) {
  const KeySet set = Make();
  const BioPtr reader(BIO_new_mem_buf(set.server_key.data(), static_cast<int>(set.server_key.size())));
  const KeyPtr key(PEM_read_bio_PrivateKey(reader.get(), nullptr, nullptr, nullptr));
  const BioPtr writer(BIO_new(BIO_s_mem()));
  char passphrase[] = "correct horse";
  ASSERT_EQ(PEM_write_bio_PrivateKey(writer.get(), key.get(), EVP_aes_128_cbc(), nullptr, 0, nullptr, passphrase), 1);
  char* bytes = nullptr;
  const auto num_bytes = BIO_get_mem_data(writer.get(), &bytes);
  const std::string locked = Write("locked.key", std::string(bytes, static_cast<size_t>(num_bytes)));
  EXPECT_THAT(LoadKeyPair(Write("server.crt", set.server_certificate), locked, Purpose::kServer, absl::Now()),
              StatusIs(StatusCode::kInvalidArgument, "passphrase"));
}

TEST_F(CertificatesTest, AKeyThatOthersMayReadIsRefused) {
  const KeySet set = Make();
  const std::string certificate = Write("server.crt", set.server_certificate),
                    key = Write("server.key", set.server_key);
  ASSERT_EQ(chmod(key.c_str(), 0644), 0);
  EXPECT_THAT(LoadKeyPair(certificate, key, Purpose::kServer, absl::Now()),
              StatusIs(StatusCode::kFailedPrecondition, "chmod 600"));
  // A certificate is no secret.
  ASSERT_EQ(chmod(key.c_str(), 0600), 0);
  ASSERT_EQ(chmod(certificate.c_str(), 0644), 0);
  EXPECT_OK(LoadKeyPair(certificate, key, Purpose::kServer, absl::Now()));
}

}  // namespace
}  // namespace eps
