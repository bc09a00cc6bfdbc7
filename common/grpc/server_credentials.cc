#include "common/grpc/server_credentials.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/log.h"
#include "common/base/log_limit.h"
#include "common/base/monotonic_clock.h"
#include "common/grpc/authorization.h"
#include "common/grpc/doors.h"
#include "grpc/grpc.h"
#include "grpc/grpc_security.h"
#include "grpc/slice.h"

namespace eps {
namespace {

constexpr absl::string_view kPath = ":path";

absl::string_view View(const grpc_slice& slice) {
  return absl::string_view(reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice));
}

// What one listening server asks its peers for. gRPC's core calls it, and deletes it with the last connection.
class Door {
 public:
  Door(std::shared_ptr<const ServerKeysWatch> keys, RoleOfMethod role_of) : keys_(std::move(keys)), role_of_(role_of) {}

  // Takes the door over.
  static grpc_server_credentials* Open(std::unique_ptr<Door> door) {
    const ServerDoors& doors = door->keys_->doors();
    grpc_server_credentials* credentials = nullptr;
    if (doors.tls()) {
      const auto request = doors.client_ca_file.empty() ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                                        : GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
      credentials = grpc_ssl_server_credentials_create_with_options(
          grpc_ssl_server_credentials_create_options_using_config_fetcher(request, FetchCertificates, door.get()));
    } else if (!doors.token_file.empty()) {
      // Plaintext credentials that can carry a check of metadata, and that take no peer but those of loopback.
      credentials = grpc_local_server_credentials_create(LOCAL_TCP);
    } else {
      return grpc_insecure_server_credentials_create();
    }
    grpc_server_credentials_set_auth_metadata_processor(
        credentials, {.process = doors.token_file.empty() ? nullptr : CheckToken,
                      .destroy = [](void* state) { delete static_cast<Door*>(state); },
                      .state = door.release()});
    return credentials;
  }

 private:
  // Called at first and before each handshake, one at a time.
  static grpc_ssl_certificate_config_reload_status FetchCertificates(void* state,
                                                                     grpc_ssl_server_certificate_config** config) {
    Door& door = *static_cast<Door*>(state);
    std::shared_ptr<const ServerCertificates> now = door.keys_->certificates();
    if (now == door.shown_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    const grpc_ssl_pem_key_cert_pair pair = {.private_key = now->pair.key.c_str(),
                                             .cert_chain = now->pair.certificate.c_str()};
    // The core wants some also where no client is asked for a certificate; nothing is then held against them.
    const std::string& roots = now->client_ca.pem.empty() ? now->pair.certificate : now->client_ca.pem;
    *config = grpc_ssl_server_certificate_config_create(roots.c_str(), &pair, 1);  // copies
    door.shown_ = std::move(now);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  // Looks at the token of every call before the call reaches its service. A comparison: no thread is needed for it.
  static void CheckToken(void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                         grpc_process_auth_metadata_done_cb done, void* call) {
    Door& door = *static_cast<Door*>(state);
    const grpc_metadata* shown = nullptr;
    int num_shown = 0;
    absl::string_view method;
    for (const grpc_metadata* each = metadata; each != metadata + count; ++each) {
      if (View(each->key) == kPath) method = View(each->value);
      if (View(each->key) != kAuthorizationHeader) continue;
      shown = each;
      ++num_shown;
    }
    const auto refuse = [&](grpc_status_code code, const std::string& why) {
      door.LogRefusal(why, method);
      done(call, nullptr, 0, nullptr, 0, code, why.c_str());
    };
    if (num_shown == 0) return refuse(GRPC_STATUS_UNAUTHENTICATED, "this daemon wants a token: give --token-file");
    if (num_shown > 1) return refuse(GRPC_STATUS_UNAUTHENTICATED, "more than one token was shown");
    const std::optional<Role> role = door.RoleOf(View(shown->value));
    if (!role.has_value()) return refuse(GRPC_STATUS_UNAUTHENTICATED, "the token is not this daemon's");
    if (const Role wanted = door.role_of_(method); *role < wanted) {
      return refuse(GRPC_STATUS_PERMISSION_DENIED,
                    absl::StrCat("the token is a ", RoleName(*role), "'s, and ", method, " wants ",
                                 wanted == Role::kOperator ? "an " : "a ", RoleName(wanted), "'s"));
    }
    done(call, shown, 1, nullptr, 0, GRPC_STATUS_OK, nullptr);  // no service sees it, and so none can log it
  }

  // All tokens are looked at, whichever it is.
  std::optional<Role> RoleOf(absl::string_view header) const {
    if (!absl::ConsumePrefix(&header, kBearer)) return std::nullopt;
    std::optional<Role> role;
    const auto known_now = keys_->tokens();
    for (const KnownToken& known : *known_now) {
      if (TokensEqual(header, known.token)) role = known.role;
    }
    return role;
  }

  void LogRefusal(const std::string& why, absl::string_view method) {
    if (const std::optional<int64_t> refused = refused_.Count(SteadyNow())) {
      LogWarning("call_refused", {{"reason", why}, {"call", method}, {"refused_so_far", *refused}});
    }
  }

  const std::shared_ptr<const ServerKeysWatch> keys_;
  const RoleOfMethod role_of_;
  std::shared_ptr<const ServerCertificates> shown_;  // what handshakes go by
  LogLimit refused_;
};

// Not SslServerCredentials: what that is given stays as long as the server lives. The core's credentials are made for
// each server by itself, as the core remembers of each server what it was shown last.
class WatchedCredentials final : public grpc::ServerCredentials {
 public:
  WatchedCredentials(std::shared_ptr<const ServerKeysWatch> keys, RoleOfMethod role_of)
      : keys_(std::move(keys)), role_of_(role_of) {}

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}  // Door is it

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    grpc_server_credentials* const credentials = Door::Open(std::make_unique<Door>(keys_, role_of_));
    const int port = grpc_server_add_http2_port(server, address.c_str(), credentials);
    grpc_server_credentials_release(credentials);  // the server holds it
    return port;
  }

  const std::shared_ptr<const ServerKeysWatch> keys_;
  const RoleOfMethod role_of_;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> NewServerCredentials(std::shared_ptr<const ServerKeysWatch> keys,
                                                              RoleOfMethod role_of) {
  return std::make_shared<WatchedCredentials>(std::move(keys), role_of);
}

}  // namespace eps
