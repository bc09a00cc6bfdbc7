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

// Whether what was read of the files could be taken.
bool Taken(const absl::Status& read, ChangingFiles& files) {
  if (read.ok()) {
    files.Take();
  } else if (files.Refuse(read)) {
    LogWarning("keys_not_reloaded", {{"reason", read.message()}, {"until_then", "what was there before goes on"}});
  }
  return read.ok();
}

}  // namespace

absl::Time ServerCertificates::expires() const {
  if (pair.certificate.empty()) return absl::InfiniteFuture();
  return client_ca.pem.empty() ? pair.expires : std::min(pair.expires, client_ca.expires);
}

absl::StatusOr<ServerCertificates> ReadServerCertificates(const ServerDoors& doors, absl::Time now) {
  ServerCertificates read;
  if (doors.tls()) {
    EPS_ASSIGN_OR_RETURN(read.pair, LoadKeyPair(doors.certificate_file, doors.key_file, Purpose::kServer, now));
  }
  if (!doors.client_ca_file.empty()) {
    EPS_ASSIGN_OR_RETURN(read.client_ca, LoadCa(doors.client_ca_file, now));
  }
  return read;
}

absl::StatusOr<std::shared_ptr<ServerKeysWatch>> ServerKeysWatch::Begin(const ServerDoors& doors, absl::Time now,
                                                                        absl::Duration every) {
  std::shared_ptr<ServerKeysWatch> watch(new ServerKeysWatch(doors));
  EPS_RETURN_IF_ERROR(watch->ReadCertificates(now));
  EPS_RETURN_IF_ERROR(watch->ReadTokenList());
  watch->WarnOfExpiry(now);
  const bool has_files = doors.tls() || doors.knows_peers();
  if (!has_files || every == absl::InfiniteDuration()) return watch;
  EPS_ASSIGN_OR_RETURN(watch->thread_, StartThread([watch = watch.get(), every] { watch->Run(every); }));
  return watch;
}

ServerKeysWatch::ServerKeysWatch(const ServerDoors& doors)
    : doors_(doors),
      certificate_files_({doors.certificate_file, doors.key_file, doors.client_ca_file}),
      token_file_({doors.token_file}) {}

ServerKeysWatch::~ServerKeysWatch() {
  {
    const MutexLock lock(mu_);
    ends_ = true;
  }
  end_changed_.NotifyAll();
  if (thread_.joinable()) thread_.join();
}

std::shared_ptr<const ServerCertificates> ServerKeysWatch::certificates() const {
  const MutexLock lock(mu_);
  return certificates_;
}

std::shared_ptr<const std::vector<KnownToken>> ServerKeysWatch::tokens() const {
  const MutexLock lock(mu_);
  return tokens_;
}

KeysState ServerKeysWatch::state() const {
  const MutexLock lock(mu_);
  return {.expires = certificates_->expires(), .not_reloaded = not_reloaded_};
}

absl::Status ServerKeysWatch::ReadCertificates(absl::Time now) {
  EPS_ASSIGN_OR_RETURN(ServerCertificates read, ReadServerCertificates(doors_, now));
  auto taken = std::make_shared<const ServerCertificates>(std::move(read));
  const MutexLock lock(mu_);
  certificates_ = std::move(taken);
  return absl::OkStatus();
}

absl::Status ServerKeysWatch::ReadTokenList() {
  std::vector<KnownToken> read;
  if (!doors_.token_file.empty()) {
    EPS_ASSIGN_OR_RETURN(read, ReadTokens(doors_.token_file));
  }
  auto taken = std::make_shared<const std::vector<KnownToken>>(std::move(read));
  const MutexLock lock(mu_);
  tokens_ = std::move(taken);
  return absl::OkStatus();
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
  if (now >= warn_again_) WarnOfExpiry(now);
  if (certificate_files_.HaveSettled() && Taken(ReadCertificates(now), certificate_files_)) {
    LogInfo("keys_reloaded", {{"what", "certificates"}, {"expires", absl::FormatTime(certificates()->expires())}});
    WarnOfExpiry(now);
  }
  if (token_file_.HaveSettled() && Taken(ReadTokenList(), token_file_)) {
    const std::vector<KnownToken> known = *tokens();
    const auto count = [&known](Role role) {
      return std::count_if(known.begin(), known.end(), [role](const KnownToken& each) { return each.role == role; });
    };
    LogInfo("keys_reloaded", {{"what", "tokens"},
                              {"operators", count(Role::kOperator)},
                              {"workers", count(Role::kWorker)},
                              {"viewers", count(Role::kViewer)}});
  }
  std::string not_reloaded = certificate_files_.refusal();
  if (!not_reloaded.empty() && !token_file_.refusal().empty()) not_reloaded += "; ";
  not_reloaded += token_file_.refusal();
  const MutexLock lock(mu_);
  not_reloaded_ = std::move(not_reloaded);
}

void ServerKeysWatch::WarnOfExpiry(absl::Time now) {
  const std::shared_ptr<const ServerCertificates> ours = certificates();
  warn_again_ = now + kWarnAgain;
  if (now < ours->expires()) warn_again_ = std::min(warn_again_, ours->expires());
  if (doors_.tls()) WarnIfExpiresSoon(doors_.certificate_file, ours->pair.expires, now);
  if (!doors_.client_ca_file.empty()) WarnIfExpiresSoon(doors_.client_ca_file, ours->client_ca.expires, now);
}

}  // namespace eps
