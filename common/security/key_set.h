#ifndef EPS_COMMON_SECURITY_KEY_SET_H_
#define EPS_COMMON_SECURITY_KEY_SET_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eps {

struct KeySetOptions {
  std::vector<std::string> hosts;  // names and addresses of the daemon, as workers will write them
  absl::Time from;                 // the certificates are valid from then
  absl::Time until;                // to then
};

// All that one cluster needs, as PEM.
struct KeySet {
  std::string ca_certificate;
  std::string server_certificate, server_key;  // for TLS servers alone, with `hosts` as subject alternative names
  std::string client_certificate, client_key;  // for TLS clients alone
  std::string operator_token, worker_token, viewer_token;

  // What a daemon's token file holds to know all three (ReadTokens).
  std::string TokenLines() const;
};

// A CA of its own, what it signs, and a token for each role. Keys are ECDSA on P-256, signatures over SHA-256, serial
// numbers random. The CA's private key exists only within this call: nobody can sign a further certificate with it, and
// there is nothing to steal. New hosts need a new set.
//
// Errors: INVALID_ARGUMENT naming the host: neither an address nor a name · INTERNAL OpenSSL's reason
absl::StatusOr<KeySet> MakeKeySet(const KeySetOptions& options);

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_KEY_SET_H_
