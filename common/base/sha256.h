#ifndef EPS_COMMON_BASE_SHA256_H_
#define EPS_COMMON_BASE_SHA256_H_

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

class LongWork;

// SHA-256 (FIPS 180-4) over bytes that come in parts. One thread at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Update(absl::Span<const std::byte> bytes);
  // 64 lower-case hexadecimal digits, as sha256sum prints them. Ends the object's use.
  std::string FinishHex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

std::string Sha256Hex(absl::Span<const std::byte> bytes);

// Of a file, read in pieces, whatever its length, which `work` is told of; null: nobody is.
// Errors: CANCELLED by `work` · FileError's, see common/base/file_util.h
absl::StatusOr<std::string> Sha256HexOfFile(const std::string& path, LongWork* work = nullptr);

}  // namespace eps

#endif  // EPS_COMMON_BASE_SHA256_H_
