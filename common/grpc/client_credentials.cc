#include "common/grpc/client_credentials.h"

#include <map>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/grpc/authorization.h"
#include "common/grpc/expiry_warning.h"
#include "common/security/certificates.h"
#include "common/security/token.h"

namespace eps {
namespace {

// A token's file is looked at no more often, however many calls there are.
constexpr absl::Duration kLookAgain = absl::Seconds(1);

}  // namespace

// The token of a file, as that is. Threads: safe
class ShownToken {
 public:
  // Errors: ReadTokenFile's
  static absl::StatusOr<std::shared_ptr<ShownToken>> Open(const std::string& file) {
    std::shared_ptr<ShownToken> token(new ShownToken(file));
    EPS_ASSIGN_OR_RETURN(std::string read, ReadTokenFile(file));
    const MutexLock lock(token->mu_);
    token->token_ = std::move(read);
    return token;
  }

  // Who asks next is told what the file holds by then.
  void LookAgain() {
    const MutexLock lock(mu_);
    look_again_ = -absl::InfiniteDuration();
  }

  // May read the file; whoever else asks meanwhile is not kept waiting for a disk, and gets what was read before.
  std::string Now() {
    {
      const MutexLock lock(mu_);
      if (is_looking_ || SteadyNow() < look_again_) return token_;
      is_looking_ = true;
      look_again_ = SteadyNow() + kLookAgain;
    }
    std::optional<std::string> read = Look();
    const MutexLock lock(mu_);
    is_looking_ = false;
    if (read.has_value()) token_ = *std::move(read);
    return token_;
  }

 private:
  explicit ShownToken(const std::string& file) : file_(file), changes_({file}) {}

  std::optional<std::string> Look() {
    if (!changes_.HaveChanged()) return std::nullopt;
    absl::StatusOr<std::string> read = ReadTokenFile(file_);
    if (read.ok()) {
      changes_.Take();
      return *std::move(read);
    }
    if (changes_.Refuse(read.status())) {
      LogWarning("token_not_reloaded",
                 {{"reason", read.status().message()}, {"until_then", "the token from before is shown"}});
    }
    return std::nullopt;
  }

  const std::string file_;
  ChangingFiles changes_;  // of the one who looks
  Mutex mu_;
  bool is_looking_ ABSL_GUARDED_BY(mu_) = false;
  absl::Duration look_again_ ABSL_GUARDED_BY(mu_) = -absl::InfiniteDuration();
  std::string token_ ABSL_GUARDED_BY(mu_);
};

namespace {

// Shows the token with every call.
class TokenBearer final : public grpc::MetadataCredentialsPlugin {
 public:
  explicit TokenBearer(std::shared_ptr<ShownToken> token) : token_(std::move(token)) {}
  bool IsBlocking() const override { return true; }  // it may read a file
  grpc::Status GetMetadata(grpc::string_ref, grpc::string_ref, const grpc::AuthContext&,
                           std::multimap<std::string, std::string>* metadata) override {
    metadata->emplace(kAuthorizationHeader, absl::StrCat(kBearer, token_->Now()));
    return grpc::Status::OK;
  }
  std::string DebugString() override { return "token"; }

 private:
  const std::shared_ptr<ShownToken> token_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ClientKeys>> ClientKeys::Open(const ClientDoors& doors, const std::string& address,
                                                             absl::Time now) {
  if (doors.ca_file.empty() && !IsLoopbackHost(HostOf(address))) {
    return absl::InvalidArgumentError(
        absl::StrCat("--connect ", address,
                     " is not this machine, and without TLS nothing is said to another: give "
                     "--tls-ca FILE (and --token-file, or --tls-cert and --tls-key, as the daemon asks)"));
  }
  std::shared_ptr<ShownToken> token;
  if (!doors.token_file.empty()) {
    EPS_ASSIGN_OR_RETURN(token, ShownToken::Open(doors.token_file));
  }
  std::shared_ptr<ClientKeys> keys(new ClientKeys(doors, std::move(token)));
  EPS_ASSIGN_OR_RETURN(keys->made_, keys->Make(now));
  return keys;
}

ClientKeys::ClientKeys(const ClientDoors& doors, std::shared_ptr<ShownToken> token)
    : doors_(doors), token_(std::move(token)), files_({doors.ca_file, doors.certificate_file, doors.key_file}) {}

ClientKeys::~ClientKeys() = default;

std::shared_ptr<grpc::ChannelCredentials> ClientKeys::Credentials() {
  if (token_ != nullptr) token_->LookAgain();
  if (!files_.HaveChanged()) return made_;
  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> made = Make(absl::Now());
  if (made.ok()) {
    files_.Take();
    made_ = *std::move(made);
    LogInfo("keys_reloaded", {{"what", "certificates"}});
  } else if (files_.Refuse(made.status())) {
    LogWarning("keys_not_reloaded",
               {{"reason", made.status().message()}, {"until_then", "the keys from before are shown"}});
  }
  return made_;
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> ClientKeys::Make(absl::Time now) const {
  std::shared_ptr<grpc::ChannelCredentials> credentials;
  if (!doors_.ca_file.empty()) {
    grpc::SslCredentialsOptions options;
    EPS_ASSIGN_OR_RETURN(CaCertificates ca, LoadCa(doors_.ca_file, now));
    WarnIfExpiresSoon(doors_.ca_file, ca.expires, now);
    options.pem_root_certs = std::move(ca.pem);
    if (!doors_.certificate_file.empty()) {
      EPS_ASSIGN_OR_RETURN(KeyPair pair, LoadKeyPair(doors_.certificate_file, doors_.key_file, Purpose::kClient, now));
      WarnIfExpiresSoon(doors_.certificate_file, pair.expires, now);
      options.pem_private_key = std::move(pair.key);
      options.pem_cert_chain = std::move(pair.certificate);
    }
    credentials = grpc::SslCredentials(options);
  } else if (token_ != nullptr) {
    // Plaintext that can carry a token; gRPC refuses to send it if the name turns out to be another machine's.
    credentials = grpc::experimental::LocalCredentials(LOCAL_TCP);
  } else {
    return grpc::InsecureChannelCredentials();
  }
  if (token_ == nullptr) return credentials;
  const grpc_security_level needed = doors_.ca_file.empty() ? GRPC_SECURITY_NONE : GRPC_PRIVACY_AND_INTEGRITY;
  return grpc::CompositeChannelCredentials(
      credentials, grpc::experimental::MetadataCredentialsFromPlugin(std::make_unique<TokenBearer>(token_), needed));
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> NewChannelCredentials(const ClientDoors& doors,
                                                                                const std::string& address,
                                                                                absl::Time now) {
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<ClientKeys> keys, ClientKeys::Open(doors, address, now));
  return keys->Credentials();
}

}  // namespace eps
