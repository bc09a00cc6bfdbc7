#include "eps_server/service/check_doors.h"

#include "absl/strings/str_cat.h"

namespace eps::server {

absl::Status CheckDoors(const ListenAddress& address, const ServerDoors& doors) {
  if (address.is_loopback() || (doors.tls() && doors.knows_peers())) return absl::OkStatus();
  const char* const missing = doors.tls() ? "--token-file FILE or --tls-client-ca FILE, or both"
                              : doors.knows_peers()
                                  ? "--tls-cert FILE --tls-key FILE"
                                  : "--tls-cert FILE --tls-key FILE, and --token-file FILE or --tls-client-ca FILE";
  return absl::InvalidArgumentError(absl::StrCat("--listen ", address.ToString(),
                                                 ": other machines reach this address, so it needs TLS and a token or "
                                                 "client certificates: give ",
                                                 missing, " too (`eps keys` makes them)"));
}

}  // namespace eps::server
