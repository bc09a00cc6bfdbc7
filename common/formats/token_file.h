#ifndef EPS_COMMON_FORMATS_TOKEN_FILE_H_
#define EPS_COMMON_FORMATS_TOKEN_FILE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

// A text or token file as a sequence of token ids. Safe to read from several threads.
class TokenFile {
 public:
  // token_bytes: 1 (the bytes themselves), 2 or 4 (little-endian ids).
  // Errors: NOT_FOUND · INVALID_ARGUMENT empty file, or a length that is no multiple of token_bytes
  static absl::StatusOr<std::unique_ptr<TokenFile>> Open(const std::string& path, int token_bytes);
  virtual ~TokenFile() = default;

  virtual int64_t num_tokens() const = 0;
  // Copies the ids from token `first` on. Errors: INVALID_ARGUMENT an id >= vocab, naming file, token
  // index, byte offset, the id and the vocabulary; OUT_OF_RANGE beyond the end; DATA_LOSS the file was cut short
  // since it was opened.
  virtual absl::Status Read(int64_t first, int64_t vocab, absl::Span<int32_t> ids) const = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_TOKEN_FILE_H_
