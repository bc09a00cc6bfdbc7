#include "common/grpc/credentials.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/security/certificates.h"
#include "common/security/token.h"

namespace eps {
namespace {

constexpr char kHeader[] = "authorization";
constexpr absl::string_view kScheme = "Bearer ";
constexpr absl::Duration kWarnBeforeExpiry = absl::Hours(14 * 24);

// Looks at the token of every call before the call reaches its service.
class TokenCheck final : public grpc::AuthMetadataProcessor {
 public:
  explicit TokenCheck(std::string token) : token_(std::move(token)) {}

  bool IsBlocking() const override { return false; }  // a comparison: no thread is needed for it

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata* consumed,
                       OutputMetadata*) override {
    const auto [begin, end] = metadata.equal_range(kHeader);
    if (begin == end) return Refuse("this daemon wants a token: give --token-file");
    if (std::next(begin) != end) return Refuse("more than one token was shown");
    const absl::string_view value(begin->second.data(), begin->second.size());
    if (value.substr(0, kScheme.size()) != kScheme || !TokensEqual(value.substr(kScheme.size()), token_)) {
      return Refuse("the token is not this daemon's");
    }
    // No service sees it, and so none can log it.
    consumed->emplace(kHeader, std::string(value.data(), value.size()));
    return grpc::Status::OK;
  }

 private:
  grpc::Status Refuse(const char* why) {
    if (const std::optional<int64_t> refused = refused_.Count(SteadyNow())) {
      LogWarning("call_refused", {{"reason", why}, {"refused_so_far", *refused}});
    }
    return grpc::Status(grpc::StatusCode::UNAUTHENTICATED, why);
  }

  const std::string token_;
  LogLimit refused_;
};

// Shows the token with every call.
class TokenBearer final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenBearer(absl::string_view token) : value_(absl::StrCat(kScheme, token)) {}
  bool IsBlocking() const override { return false; }
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<std::string, std::string>* metadata) override {
    metadata->emplace(kHeader, value_);
    return grpc::Status::OK;
  }
  std::string DebugString() override { return "token"; }

 private:
  const std::string value_;
};

void WarnOfExpiry(const std::string& file, absl::Time expires, absl::Time now) {
  if (expires - now > kWarnBeforeExpiry) return;
  LogWarning("certificate_expires_soon", {{"file", file}, {"hours_left", absl::ToInt64Hours(expires - now)}});
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> NewServerCredentials(const ServerDoors& doors,
                                                                              absl::Time now) {
  std::string token;
  if (!doors.token_file.empty()) {
    EPS_ASSIGN_OR_RETURN(token, ReadTokenFile(doors.token_file));
  }
  std::shared_ptr<grpc::ServerCredentials> credentials;
  if (doors.tls()) {
    EPS_ASSIGN_OR_RETURN(KeyPair pair, LoadKeyPair(doors.certificate_file, doors.key_file, now));
    WarnOfExpiry(doors.certificate_file, pair.expires, now);
    grpc::SslServerCredentialsOptions options(doors.client_ca_file.empty()
                                                  ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                  : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
    options.pem_key_cert_pairs.push_back({std::move(pair.key), std::move(pair.certificate)});
    if (!doors.client_ca_file.empty()) {
      EPS_ASSIGN_OR_RETURN(CaCertificates ca, LoadCa(doors.client_ca_file, now));
      WarnOfExpiry(doors.client_ca_file, ca.expires, now);
      options.pem_root_certs = std::move(ca.pem);
    }
    credentials = grpc::SslServerCredentials(options);
  } else if (!token.empty()) {
    // Plaintext credentials that can carry a check of metadata, and that take no peer but those of loopback.
    credentials = grpc::experimental::LocalServerCredentials(LOCAL_TCP);
  } else {
    credentials = grpc::InsecureServerCredentials();
  }
  if (!token.empty()) credentials->SetAuthMetadataProcessor(std::make_shared<TokenCheck>(std::move(token)));
  return credentials;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> NewChannelCredentials(const ClientDoors& doors,
                                                                                const std::string& address,
                                                                                absl::Time now) {
  if (doors.ca_file.empty() && !IsLoopbackHost(HostOf(address))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--connect ", address,
                     " is not this machine, and without TLS nothing is said to another: give "
                     "--tls-ca FILE (and --token-file, or --tls-cert and --tls-key, as the daemon asks)"));
  }
  std::string token;
  if (!doors.token_file.empty()) {
    EPS_ASSIGN_OR_RETURN(token, ReadTokenFile(doors.token_file));
  }
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (!doors.ca_file.empty()) {
    grpc::SslCredentialsOptions options;
    EPS_ASSIGN_OR_RETURN(CaCertificates ca, LoadCa(doors.ca_file, now));
    WarnOfExpiry(doors.ca_file, ca.expires, now);
    options.pem_root_certs = std::move(ca.pem);
    if (!doors.certificate_file.empty()) {
      EPS_ASSIGN_OR_RETURN(KeyPair pair, LoadKeyPair(doors.certificate_file, doors.key_file, now));
      WarnOfExpiry(doors.certificate_file, pair.expires, now);
      options.pem_private_key = std::move(pair.key);
      options.pem_cert_chain = std::move(pair.certificate);
    }
    credentials = grpc::SslCredentials(options);
  } else if (!token.empty()) {
    // As above; gRPC refuses to send the token if the name turns out to be another machine's.
    credentials = grpc::experimental::LocalCredentials(LOCAL_TCP);
  } else {
    credentials = grpc::InsecureChannelCredentials();
  }
  if (token.empty()) return credentials;
  const grpc_security_level needed = doors.ca_file.empty() ? GRPC_SECURITY_NONE : GRPC_PRIVACY_AND_INTEGRITY;
  return grpc::CompositeChannelCredentials(
      credentials, grpc::experimental::MetadataCredentialsFromPlugin(std::make_unique<TokenBearer>(token), needed));
}

}  // namespace eps
