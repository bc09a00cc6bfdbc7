#include "common/security/token.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/security/secret_file.h"

namespace eps {
namespace {

constexpr size_t kTokenBytes = 32;       // as many as an AES-256 key has: it cannot be guessed
constexpr size_t kMinCharacters = 43;    // 32 bytes in base64 without padding
constexpr size_t kMaxCharacters = 1024;  // far below gRPC's limit for metadata, 8 KiB
constexpr size_t kMaxTokens = 256;       // each is compared with what a call shows
constexpr Role kRoles[] = {Role::kViewer, Role::kWorker, Role::kOperator};

// As RFC 6750 writes a bearer token; "." and "~" too.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("-_.~+/=").find(c) != absl::string_view::npos;
}

// `line` without white space around it. Errors: INVALID_ARGUMENT
absl::StatusOr<KnownToken> ParseLine(absl::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
  const absl::string_view token = words.front();
  if (token.size() < kMinCharacters || token.size() > kMaxCharacters) {
    return absl::InvalidArgumentError(absl::StrCat("a token of ", token.size(), " characters, want ", kMinCharacters,
                                                   " to ", kMaxCharacters, "; `eps keys` makes one"));
  }
  if (!std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
    return absl::InvalidArgumentError("a token is of letters, digits and - _ . ~ + / =; `eps keys` makes one");
  }
  KnownToken known = {.token = std::string(token)};
  if (words.size() == 1) return known;
  for (const Role role : kRoles) {
    if (words.size() == 2 && words[1] == RoleName(role)) {
      known.role = role;
      return known;
    }
  }
  // The words are not repeated: two tokens on a line are a likely mistake.
  return absl::InvalidArgumentError("after a token stands its role, viewer, worker or operator, or nothing");
}

}  // namespace

absl::StatusOr<std::string> NewToken() {
  std::array<unsigned char, kTokenBytes> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return absl::InternalError("token: the system gives no random bytes");
  }
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::string_view RoleName(Role role) {
  switch (role) {
    case Role::kViewer:
      return "viewer";
    case Role::kWorker:
      return "worker";
    case Role::kOperator:
      return "operator";
  }
  return "";
}

absl::StatusOr<std::vector<KnownToken>> ReadTokens(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string content, ReadSecretFile(path));
  std::vector<KnownToken> tokens;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(content, '\n')) {
    ++number;
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line.front() == '#') continue;
    absl::StatusOr<KnownToken> parsed = ParseLine(line);
    if (!parsed.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": ", parsed.status().message()));
    }
    const bool is_there = std::any_of(tokens.begin(), tokens.end(),
                                      [&](const KnownToken& other) { return TokensEqual(other.token, parsed->token); });
    if (is_there)
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": an earlier line has this token"));
    if (tokens.size() == kMaxTokens) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", number, ": more than ", kMaxTokens, " tokens"));
    }
    tokens.push_back(*std::move(parsed));
  }
  if (tokens.empty()) return absl::InvalidArgumentError(absl::StrCat(path, ": holds no token; `eps keys` makes one"));
  return tokens;
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(std::vector<KnownToken> tokens, ReadTokens(path));
  return std::move(tokens.front().token);
}

bool TokensEqual(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace eps
