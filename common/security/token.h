#ifndef EPS_COMMON_SECURITY_TOKEN_H_
#define EPS_COMMON_SECURITY_TOKEN_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// What a peer shows to be let in: at least 32 random bytes as text, which travels as `authorization: Bearer TOKEN`.

// What who shows a token may do with a daemon; docs/security.md, Roles, has the calls of each. Each may do what those
// before it may.
enum class Role { kViewer, kWorker, kOperator };

// As token files and logs write it: "viewer", "worker", "operator".
absl::string_view RoleName(Role role);

struct KnownToken {
  std::string token;
  Role role = Role::kOperator;
};

// 32 bytes of OpenSSL's random numbers as 64 hexadecimal digits. Errors: INTERNAL the system has no randomness
absl::StatusOr<std::string> NewToken();

// All whom a daemon lets in, in the file's order, at least one: a line each, `TOKEN` or `TOKEN ROLE`. Lines that are
// empty or begin with # are left out. No message holds any part of a token.
// Errors: ReadSecretFile's · INVALID_ARGUMENT naming file and line: a token of fewer than 43 characters (32 bytes in
//         base64), more than 1,024, or with one that is not a letter, a digit or one of - _ . ~ + / =; no role; a token
//         that an earlier line has; more than 256 tokens, or none
absl::StatusOr<std::vector<KnownToken>> ReadTokens(const std::string& path);

// The one that a client shows: the first of them. Errors: ReadTokens'
absl::StatusOr<std::string> ReadTokenFile(const std::string& path);

// In a time that does not depend on where they differ. (The length of a token is no secret.)
bool TokensEqual(absl::string_view a, absl::string_view b);

}  // namespace eps

#endif  // EPS_COMMON_SECURITY_TOKEN_H_
