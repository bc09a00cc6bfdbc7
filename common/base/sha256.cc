#include "common/base/sha256.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/long_work.h"
#include "common/base/status_macros.h"

namespace eps {

// OpenSSL's calls fail here only when memory is out.
struct Sha256::Context {
  EVP_MD_CTX* md = EVP_MD_CTX_new();
  ~Context() { EVP_MD_CTX_free(md); }
};

Sha256::Sha256() : context_(std::make_unique<Context>()) {
  EPS_CHECK(context_->md != nullptr && EVP_DigestInit_ex(context_->md, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Update(absl::Span<const std::byte> bytes) {
  EPS_CHECK(context_ != nullptr && EVP_DigestUpdate(context_->md, bytes.data(), bytes.size()) == 1);
}

std::string Sha256::FinishHex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int num_bytes = 0;
  EPS_CHECK(context_ != nullptr && EVP_DigestFinal_ex(context_->md, digest, &num_bytes) == 1);
  context_.reset();
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), num_bytes));
}

std::string Sha256Hex(absl::Span<const std::byte> bytes) {
  Sha256 hash;
  hash.Update(bytes);
  return hash.FinishHex();
}

absl::StatusOr<std::string> Sha256HexOfFile(const std::string& path, LongWork* work) {
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  Sha256 hash;
  std::vector<std::byte> buffer(1 << 20);
  for (;;) {
    const ssize_t n = read(file.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path);
    if (n == 0) return hash.FinishHex();
    hash.Update(absl::MakeConstSpan(buffer).subspan(0, static_cast<size_t>(n)));
    EPS_RETURN_IF_ERROR(AddTo(work, n));
  }
}

}  // namespace eps
