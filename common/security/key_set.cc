#include "common/security/key_set.h"

#include <openssl/bn.h>
#include <openssl/ec.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "common/base/host.h"
#include "common/base/status_macros.h"
#include "common/security/openssl_ptr.h"
#include "common/security/token.h"

namespace eps {
namespace {

using ExtensionPtr = std::unique_ptr<X509_EXTENSION, OpensslFree<X509_EXTENSION, X509_EXTENSION_free>>;

constexpr long kX509V3 = 2;  // NOLINT(google-runtime-int): OpenSSL counts versions from 0, in longs

absl::Status OpensslError(absl::string_view doing) {
  std::array<char, 256> text = {};
  ERR_error_string_n(ERR_get_error(), text.data(), text.size());
  ERR_clear_error();
  return absl::InternalError(absl::StrCat("keys: ", doing, ": ", text.data()));
}

// A name of RFC 1123, perhaps with a first label of "*". Nothing else gets into the text that OpenSSL parses.
absl::Status CheckName(const std::string& host) {
  const absl::string_view labels = absl::string_view(host).substr(host.rfind("*.", 0) == 0 ? 2 : 0);
  const bool fine = !labels.empty() && labels.size() <= 253 &&
                    absl::ascii_isalnum(static_cast<unsigned char>(labels[0])) &&
                    std::all_of(labels.begin(), labels.end(), [](char c) {
                      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '.' || c == '_';
                    });
  if (fine) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--host ", host, ": want a name or an address, without a port and brackets"));
}

absl::StatusOr<std::string> AlternativeNames(const std::vector<std::string>& hosts) {
  std::vector<std::string> names;
  for (const std::string& host : hosts) {
    const bool is_address = IsAddressLiteral(host);
    if (!is_address) EPS_RETURN_IF_ERROR(CheckName(host));
    names.push_back(absl::StrCat(is_address ? "IP:" : "DNS:", host));
  }
  return absl::StrJoin(names, ",");
}

absl::Status AddExtension(X509* certificate, const X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, const_cast<X509*>(issuer), certificate, nullptr, nullptr, 0);
  const ExtensionPtr extension(X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  if (extension == nullptr || X509_add_ext(certificate, extension.get(), -1) != 1) {
    return OpensslError(absl::StrCat("extension ", OBJ_nid2sn(nid)));
  }
  return absl::OkStatus();
}

absl::Status SetSerialNumber(X509* certificate) {
  std::array<unsigned char, 16> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) return OpensslError("serial number");
  bytes[0] = static_cast<unsigned char>((bytes[0] & 0x7f) | 0x40);  // positive, and always of the same length
  const std::unique_ptr<BIGNUM, OpensslFree<BIGNUM, BN_free>> number(BN_bin2bn(bytes.data(), bytes.size(), nullptr));
  if (number == nullptr || BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(certificate)) == nullptr) {
    return OpensslError("serial number");
  }
  return absl::OkStatus();
}

struct Extension {
  int nid;
  std::string value;
};

// One of the set: a new key, and its certificate.
struct Identity {
  KeyPtr key;
  CertificatePtr certificate;
};

// Signed by `issuer`, or by itself without one.
absl::StatusOr<Identity> MakeIdentity(const std::string& name, const std::vector<Extension>& extensions,
                                      const KeySetOptions& options, const Identity* issuer) {
  Identity identity = {.key = KeyPtr(EVP_EC_gen("P-256")), .certificate = CertificatePtr(X509_new())};
  X509* const certificate = identity.certificate.get();
  if (identity.key == nullptr || certificate == nullptr) return OpensslError("new key");
  const Identity& signer = issuer == nullptr ? identity : *issuer;
  X509_NAME* const subject = X509_get_subject_name(certificate);
  const auto* text = reinterpret_cast<const unsigned char*>(name.c_str());
  EPS_RETURN_IF_ERROR(SetSerialNumber(certificate));
  if (X509_set_version(certificate, kX509V3) != 1 ||
      X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, text, -1, -1, 0) != 1 ||
      X509_set_issuer_name(certificate, X509_get_subject_name(signer.certificate.get())) != 1 ||
      ASN1_TIME_set(X509_getm_notBefore(certificate), absl::ToTimeT(options.from)) == nullptr ||
      ASN1_TIME_set(X509_getm_notAfter(certificate), absl::ToTimeT(options.until)) == nullptr ||
      X509_set_pubkey(certificate, identity.key.get()) != 1) {
    return OpensslError(name);
  }
  for (const Extension& extension : extensions) {
    EPS_RETURN_IF_ERROR(AddExtension(certificate, signer.certificate.get(), extension.nid, extension.value));
  }
  if (X509_sign(certificate, signer.key.get(), EVP_sha256()) == 0) return OpensslError(name);
  return identity;
}

std::string Written(const BioPtr& writer) {
  char* bytes = nullptr;
  const long num_bytes = BIO_get_mem_data(writer.get(), &bytes);  // NOLINT(google-runtime-int): OpenSSL's type
  return std::string(bytes, static_cast<size_t>(num_bytes));
}

absl::Status ToPem(const Identity& identity, std::string* certificate, std::string* key) {
  const BioPtr certificate_writer(BIO_new(BIO_s_mem()));
  if (PEM_write_bio_X509(certificate_writer.get(), identity.certificate.get()) != 1) return OpensslError("PEM");
  *certificate = Written(certificate_writer);
  if (key == nullptr) return absl::OkStatus();
  // Secure memory is wiped when it is let go.
  const BioPtr key_writer(BIO_new(BIO_s_secmem()));
  if (PEM_write_bio_PrivateKey(key_writer.get(), identity.key.get(), nullptr, nullptr, 0, nullptr, nullptr) != 1) {
    return OpensslError("PEM");
  }
  *key = Written(key_writer);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<KeySet> MakeKeySet(const KeySetOptions& options) {
  if (options.hosts.empty()) return absl::InvalidArgumentError("keys: no host");
  EPS_ASSIGN_OR_RETURN(const std::string names, AlternativeNames(options.hosts));
  // Two sets must not look alike to whoever has both: the name tells them apart.
  EPS_ASSIGN_OR_RETURN(const std::string tag, NewToken());
  EPS_ASSIGN_OR_RETURN(const Identity ca, MakeIdentity(absl::StrCat("EPS cluster ", tag.substr(0, 8)),
                                                       {{NID_basic_constraints, "critical,CA:TRUE,pathlen:0"},
                                                        {NID_key_usage, "critical,keyCertSign"},
                                                        {NID_subject_key_identifier, "hash"}},
                                                       options, nullptr));
  const auto leaf = [&](const std::string& purpose) {
    return std::vector<Extension>{{NID_basic_constraints, "critical,CA:FALSE"},
                                  {NID_key_usage, "critical,digitalSignature"},
                                  {NID_ext_key_usage, purpose},
                                  {NID_subject_key_identifier, "hash"},
                                  {NID_authority_key_identifier, "keyid"}};
  };
  std::vector<Extension> of_server = leaf("serverAuth");
  of_server.push_back({NID_subject_alt_name, names});
  EPS_ASSIGN_OR_RETURN(const Identity server, MakeIdentity("eps_server", of_server, options, &ca));
  EPS_ASSIGN_OR_RETURN(const Identity client, MakeIdentity("eps client", leaf("clientAuth"), options, &ca));

  KeySet set;
  EPS_RETURN_IF_ERROR(ToPem(ca, &set.ca_certificate, nullptr));
  EPS_RETURN_IF_ERROR(ToPem(server, &set.server_certificate, &set.server_key));
  EPS_RETURN_IF_ERROR(ToPem(client, &set.client_certificate, &set.client_key));
  for (std::string* token : {&set.operator_token, &set.worker_token, &set.viewer_token}) {
    EPS_ASSIGN_OR_RETURN(*token, NewToken());
  }
  return set;
}

std::string KeySet::TokenLines() const {
  return absl::StrCat(operator_token, " ", RoleName(Role::kOperator), "\n",  //
                      worker_token, " ", RoleName(Role::kWorker), "\n",      //
                      viewer_token, " ", RoleName(Role::kViewer), "\n");
}

}  // namespace eps
