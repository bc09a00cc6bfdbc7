#ifndef EPS_COMMON_SECURITY_CERTIFICATES_H_
#define EPS_COMMON_SECURITY_CERTIFICATES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace eps {

// A certificate (with those between it and its CA, if any) and its private key, as PEM.
struct KeyPair {
  std::string certificate;
  std::string key;
  absl::Time expires;  // the first of them that does
};

// Certificates whose owners a peer must be signed by, as PEM.
struct CaCertificates {
  std::string pem;
  absl::Time expires;  // of the only one; never of several, such as a system's, most of which nobody needs
};

// Whom a certificate is for, where it says that.
enum class Purpose { kServer, kClient };

// Reads both and looks at them as a handshake would, so that what is wrong is said by file and at the start, instead of
// by a handshake that fails.
//
// Errors: INVALID_ARGUMENT naming the file: no certificate or key in PEM, a key with a passphrase, a key of another
//         certificate, expired or not valid yet, too weak for the system's TLS · ReadSecretFile's for the key · FileError's
absl::StatusOr<KeyPair> LoadKeyPair(const std::string& certificate_file, const std::string& key_file, Purpose purpose,
                                    absl::Time now);

// Of several those that are no CA's, or not in date, do not matter, as long as one is both.
// Errors: INVALID_ARGUMENT naming the file: no certificate in PEM, none of a CA, or none in date · FAILED_PRECONDITION
//         every user of the machine may write it · FileError's
absl::StatusOr<CaCertificates> LoadCa(const std::string& file, absl::Time now);

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_CERTIFICATES_H_
