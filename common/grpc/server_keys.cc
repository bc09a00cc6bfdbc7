#include "common/grpc/server_keys.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/log.h"
#include "common/base/monotonic_clock.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "common/grpc/expiry_warning.h"

namespace eps {
namespace {

constexpr absl::Duration kWarnAgain = absl::Hours(24);

}  // namespace

absl::Time ServerKeys::expires() const {
  if (pair.certificate.empty()) return absl::InfiniteFuture();
  return client_ca.pem.empty() ? pair.expires : std::min(pair.expires, client_ca.expires);
}

absl::StatusOr<ServerKeys> ReadServerKeys(const ServerDoors& doors, absl::Time now) {
  ServerKeys keys;
  if (doors.tls()) {
    EPS_ASSIGN_OR_RETURN(keys.pair, LoadKeyPair(doors.certificate_file, doors.key_file, now));
  }
  if (!doors.client_ca_file.empty()) {
    EPS_ASSIGN_OR_RETURN(keys.client_ca, LoadCa(doors.client_ca_file, now));
  }
  if (!doors.token_file.empty()) {
    EPS_ASSIGN_OR_RETURN(keys.tokens, ReadTokens(doors.token_file));
  }
  return keys;
}

absl::StatusOr<std::shared_ptr<ServerKeysWatch>> ServerKeysWatch::Begin(const ServerDoors& doors, absl::Time now,
                                                                        absl::Duration every) {
  // Before the files are read: what is written meanwhile is a change.
  FileStamps stamps({doors.certificate_file, doors.key_file, doors.client_ca_file, doors.token_file});
  EPS_ASSIGN_OR_RETURN(ServerKeys keys, ReadServerKeys(doors, now));
  std::shared_ptr<ServerKeysWatch> watch(new ServerKeysWatch(doors, std::move(stamps), std::move(keys), now));
  const bool has_files = doors.tls() || doors.knows_peers();
  if (!has_files || every == absl::InfiniteDuration()) return watch;
  EPS_ASSIGN_OR_RETURN(watch->thread_, StartThread([watch = watch.get(), every] { watch->Run(every); }));
  return watch;
}

ServerKeysWatch::ServerKeysWatch(const ServerDoors& doors, FileStamps stamps, ServerKeys keys, absl::Time now)
    : doors_(doors), stamps_(std::move(stamps)), keys_(std::make_shared<const ServerKeys>(std::move(keys))) {
  WarnOfExpiry(*keys_, now);
}

ServerKeysWatch::~ServerKeysWatch() {
  {
    const MutexLock lock(mu_);
    ends_ = true;
  }
  end_changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const ServerKeys> ServerKeysWatch::keys() const {
  const MutexLock lock(mu_);
  return keys_;
}

bool ServerKeysWatch::is_stale() const {
  const MutexLock lock(mu_);
  return is_stale_;
}

void ServerKeysWatch::Run(absl::Duration every) {
  while (true) {
    {
      const MutexLock lock(mu_);
      const absl::Duration until = SteadyNow() + every;
      while (!ends_ && SteadyNow() < until) end_changed_.WaitFor(mu_, absl::ToChronoNanoseconds(until - SteadyNow()));
      if (ends_) return;
    }
    Look(absl::Now());
  }
}

void ServerKeysWatch::Look(absl::Time now) {
  if (now >= warn_again_) WarnOfExpiry(*keys(), now);
  if (stamps_.Changed()) {
    is_to_read_ = true;
    return;
  }
  if (!is_to_read_) return;
  absl::StatusOr<ServerKeys> read = ReadServerKeys(doors_, now);
  if (!read.ok()) {
    if (refusal_ != read.status().message()) {
      refusal_ = std::string(read.status().message());
      LogWarning("keys_not_reloaded", {{"reason", refusal_}, {"until_then", "the keys from before go on"}});
    }
    const MutexLock lock(mu_);
    is_stale_ = true;
    return;
  }
  is_to_read_ = false;
  refusal_.clear();
  const auto keys = std::make_shared<const ServerKeys>(*std::move(read));
  {
    const MutexLock lock(mu_);
    is_stale_ = false;
    keys_ = keys;
  }
  LogInfo("keys_reloaded", {{"tokens", static_cast<int64_t>(keys->tokens.size())}});
  WarnOfExpiry(*keys, now);
}

void ServerKeysWatch::WarnOfExpiry(const ServerKeys& keys, absl::Time now) {
  warn_again_ = now + kWarnAgain;
  if (doors_.tls()) WarnIfExpiresSoon(doors_.certificate_file, keys.pair.expires, now);
  if (!doors_.client_ca_file.empty()) WarnIfExpiresSoon(doors_.client_ca_file, keys.client_ca.expires, now);
}

}  // namespace eps
