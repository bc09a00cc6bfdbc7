#ifndef EPS_COMMON_SECURITY_TOKEN_H_
#define EPS_COMMON_SECURITY_TOKEN_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// What a peer shows to be let in: at least 32 random bytes as text, which travels as `authorization: Bearer TOKEN`.

// 32 bytes of OpenSSL's random numbers as 64 hexadecimal digits. Errors: INTERNAL the system has no randomness
absl::StatusOr<std::string> NewToken();

// The one line of the file. No message holds any part of the token.
// Errors: ReadSecretFile's · INVALID_ARGUMENT fewer than 43 characters (32 bytes in base64), more than 1,024, or one
//         that is not a letter, a digit or one of - _ . ~ + / =
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// In a time that does not depend on where they differ. (The length of a token is no secret.)
bool TokensEqual(absl::string_view a, absl::string_view b);

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_TOKEN_H_
