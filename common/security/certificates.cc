#include "common/security/certificates.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <algorithm>
#include <ctime>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/security/openssl_ptr.h"
#include "common/security/secret_file.h"

namespace eps {
namespace {

constexpr int64_t kMaxFileBytes = 1 << 20;  // the CAs of a whole system are about 200 KiB

absl::Status Wrong(const std::string& file, absl::string_view what) {
  ERR_clear_error();  // what OpenSSL noted belongs to nobody else
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", what));
}

using TlsContextPtr = std::unique_ptr<SSL_CTX, OpensslFree<SSL_CTX, SSL_CTX_free>>;

BioPtr Reader(const std::string& pem) { return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size()))); }

absl::StatusOr<std::vector<CertificatePtr>> Parse(const std::string& pem, const std::string& file) {
  const BioPtr reader = Reader(pem);
  std::vector<CertificatePtr> certificates;
  while (X509* next = PEM_read_bio_X509(reader.get(), nullptr, nullptr, nullptr)) certificates.emplace_back(next);
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's type
  if (ERR_GET_REASON(error) != PEM_R_NO_START_LINE) return Wrong(file, "holds a certificate that is damaged");
  if (certificates.empty()) return Wrong(file, "holds no certificate (want PEM: -----BEGIN CERTIFICATE-----)");
  ERR_clear_error();
  return certificates;
}

absl::Time ToTime(const ASN1_TIME* asn1) {
  std::tm tm = {};
  if (ASN1_TIME_to_tm(asn1, &tm) != 1) return absl::InfinitePast();
  return absl::FromTimeT(timegm(&tm));
}

std::string Utc(absl::Time time) { return absl::FormatTime("%Y-%m-%d %H:%M UTC", time, absl::UTCTimeZone()); }

// When it expires. Errors: INVALID_ARGUMENT it has, or is not valid yet
absl::StatusOr<absl::Time> CheckDates(const X509* certificate, const std::string& file, absl::Time now) {
  const absl::Time from = ToTime(X509_get0_notBefore(certificate)), until = ToTime(X509_get0_notAfter(certificate));
  if (now >= until) return Wrong(file, absl::StrCat("expired on ", Utc(until), "; `eps keys` makes new ones"));
  if (now < from)
    return Wrong(file, absl::StrCat("valid only from ", Utc(from), " on; is this machine's clock right?"));
  return until;
}

// Instead of a question on the terminal.
int NoPassphrase(char*, int, int, void* asked) {
  *static_cast<bool*>(asked) = true;
  return -1;
}

absl::StatusOr<KeyPtr> ParseKey(const std::string& pem, const std::string& file) {
  const BioPtr reader = Reader(pem);
  bool asked = false;
  KeyPtr key(PEM_read_bio_PrivateKey(reader.get(), nullptr, NoPassphrase, &asked));
  if (asked) return Wrong(file, "the key has a passphrase, which nobody could type; protect the file by its mode");
  if (key == nullptr) return Wrong(file, "holds no private key (want PEM: -----BEGIN PRIVATE KEY-----)");
  return key;
}

// Also of whoever is let in by what it holds, though it is no secret.
absl::StatusOr<std::string> ReadCertificates(const std::string& file) {
  struct stat found = {};
  if (stat(file.c_str(), &found) == 0 && (found.st_mode & S_IWOTH) != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(file, ": every user of this machine may write it: chmod o-w ", file));
  }
  EPS_ASSIGN_OR_RETURN(std::string pem, ReadFile(file, kMaxFileBytes));
  // gRPC is given it as a C string.
  if (pem.find('\0') != std::string::npos) return Wrong(file, "has a zero byte, and is no PEM");
  return pem;
}

absl::Status CheckPurpose(X509* certificate, Purpose purpose, const std::string& file) {
  const bool is_server = purpose == Purpose::kServer;
  if (X509_check_purpose(certificate, is_server ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT, 0) == 1) {
    return absl::OkStatus();
  }
  return Wrong(file, is_server ? "is not for a server (was client.crt given for server.crt?)"
                               : "is not for a client (was server.crt given for client.crt?)");
}

// What TLS itself asks of a certificate and its key, such as how long that is. gRPC, which is given them later, says of
// what it refuses nothing but in its own log.
absl::Status CheckUsable(X509* certificate, EVP_PKEY* key, const std::string& file) {
  const TlsContextPtr context(SSL_CTX_new(TLS_method()));
  if (context != nullptr && SSL_CTX_use_certificate(context.get(), certificate) == 1 &&
      SSL_CTX_use_PrivateKey(context.get(), key) == 1) {
    return absl::OkStatus();
  }
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  return Wrong(file,
               absl::StrCat("TLS does not take this certificate and its key: ",
                            reason == nullptr ? "OpenSSL does not say why" : reason, "; `eps keys` makes others"));
}

}  // namespace

absl::StatusOr<KeyPair> LoadKeyPair(const std::string& certificate_file, const std::string& key_file, Purpose purpose,
                                    absl::Time now) {
  KeyPair pair;
  EPS_ASSIGN_OR_RETURN(pair.certificate, ReadCertificates(certificate_file));
  EPS_ASSIGN_OR_RETURN(pair.key, ReadSecretFile(key_file));
  EPS_ASSIGN_OR_RETURN(const std::vector<CertificatePtr> chain, Parse(pair.certificate, certificate_file));
  EPS_ASSIGN_OR_RETURN(const KeyPtr key, ParseKey(pair.key, key_file));
  if (X509_check_private_key(chain.front().get(), key.get()) != 1) {
    return Wrong(key_file, absl::StrCat("is not the key of ", certificate_file));
  }
  EPS_RETURN_IF_ERROR(CheckPurpose(chain.front().get(), purpose, certificate_file));
  EPS_RETURN_IF_ERROR(CheckUsable(chain.front().get(), key.get(), certificate_file));
  pair.expires = absl::InfiniteFuture();
  for (const CertificatePtr& certificate : chain) {
    EPS_ASSIGN_OR_RETURN(const absl::Time expires, CheckDates(certificate.get(), certificate_file, now));
    pair.expires = std::min(pair.expires, expires);
  }
  return pair;
}

absl::StatusOr<CaCertificates> LoadCa(const std::string& file, absl::Time now) {
  EPS_ASSIGN_OR_RETURN(std::string pem, ReadCertificates(file));
  EPS_ASSIGN_OR_RETURN(const std::vector<CertificatePtr> certificates, Parse(pem, file));
  absl::Status wrong;  // with the first of them
  absl::Time expires;
  bool is_one_good = false;
  for (const CertificatePtr& certificate : certificates) {
    absl::StatusOr<absl::Time> dates = CheckDates(certificate.get(), file, now);
    if (dates.ok() && X509_check_ca(certificate.get()) == 0) {
      dates = Wrong(file, "is not the certificate of a CA (was server.crt or client.crt given for ca.crt?)");
    }
    if (!dates.ok()) {
      if (wrong.ok()) wrong = dates.status();
      continue;
    }
    is_one_good = true;
    expires = *dates;
  }
  if (!is_one_good) return wrong;
  return CaCertificates{.pem = std::move(pem), .expires = certificates.size() == 1 ? expires : absl::InfiniteFuture()};
}

}  // namespace eps
