#include "common/security/token.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <algorithm>
#include <array>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/security/secret_file.h"

namespace eps {
namespace {

constexpr size_t kTokenBytes = 32;       // as many as an AES-256 key has: it cannot be guessed
constexpr size_t kMinCharacters = 43;    // 32 bytes in base64 without padding
constexpr size_t kMaxCharacters = 1024;  // far below gRPC's limit for metadata, 8 KiB

// As RFC 6750 writes a bearer token; "." and "~" too.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         absl::string_view("-_.~+/=").find(c) != absl::string_view::npos;
}

}  // namespace

absl::StatusOr<std::string> NewToken() {
  std::array<unsigned char, kTokenBytes> bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return absl::InternalError("token: the system gives no random bytes");
  }
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

absl::StatusOr<std::string> ReadTokenFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(std::string token, ReadSecretFile(path));
  absl::StripTrailingAsciiWhitespace(&token);
  if (token.size() < kMinCharacters || token.size() > kMaxCharacters) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": a token of ", token.size(), " characters, want ",
                                                   kMinCharacters, " to ", kMaxCharacters, "; `eps keys` makes one"));
  }
  if (!std::all_of(token.begin(), token.end(), IsTokenCharacter)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a token is one line of letters, digits and - _ . ~ + / =; `eps keys` makes one"));
  }
  return token;
}

bool TokensEqual(absl::string_view a, absl::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace eps
