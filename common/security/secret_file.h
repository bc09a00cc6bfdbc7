#ifndef EPS_COMMON_SECURITY_SECRET_FILE_H_
#define EPS_COMMON_SECURITY_SECRET_FILE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// The content of a file that nobody but its owner may know: a private key, a token. What is read never appears in a
// message. The checks are made on the open file, so that it cannot be exchanged between check and use.
//
// Errors: FAILED_PRECONDITION group or others may read it (the message names its mode and the chmod that mends it), or
//         it belongs to another user · INVALID_ARGUMENT no regular file, or larger than 64 KiB · FileError's
absl::StatusOr<std::string> ReadSecretFile(const std::string& path);

// Makes `path` with mode 0600 whatever the umask is, and syncs it. After any other error than ALREADY_EXISTS it is not there.
// Errors: ALREADY_EXISTS · FileError's
absl::Status WriteSecretFile(const std::string& path, absl::string_view content);

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_SECRET_FILE_H_
