#ifndef EPS_COMMON_FORMATS_DOCUMENT_INDEX_BYTES_H_
#define EPS_COMMON_FORMATS_DOCUMENT_INDEX_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

// The bytes of NAME.bin.docs, which docs/formats.md describes with a worked example. Little-endian; every section starts
// at a multiple of 8, and what fills it up to there is zero.
namespace eps {

//   offset  bytes  field
//        0      4  magic "EPSD"
//        4      2  format, kDocumentIndexFormat
//        6      1  token_bytes: of the token file, 2 or 4
//        7      1  flags: the sum of kMayBeCut, ...
//        8      8  num_tokens
//       16      8  num_documents
//       24      8  class_names_bytes: of the section of that name; only with kHasLabels
//       32     32  fingerprint of the tokenizer, a SHA-256
//       64         the sections
inline constexpr int64_t kDocumentIndexHeaderBytes = 64;
inline constexpr uint16_t kDocumentIndexFormat = 1;
inline constexpr int64_t kFingerprintBytes = 32;
// So that no sum of sizes overflows.
inline constexpr int64_t kMaxIndexedTokens = int64_t{1} << 56;

enum DocumentIndexFlag : uint8_t {
  kMayBeCut = 1,
  kHasCounted = 2,      // a bitmap of the counted tokens; without it all are
  kHasLabels = 4,       // a class for each document
  kHasSecondParts = 8,  // where each document's second part begins
};
inline constexpr uint8_t kAllDocumentIndexFlags = 15;
// Of all names together, each with its line's end.
inline constexpr int64_t kMaxClassNamesBytes = int64_t{1} << 24;

// Where the sections lie, in this order; one that is not there has no bytes.
struct DocumentIndexSections {
  int64_t first_tokens = 0;  // u64 each, num_documents + 1
  int64_t counted = 0;       // token t is bit t % 8, counted from the lowest, of byte t / 8
  int64_t labels = 0;        // i32 each
  int64_t second_parts = 0;  // u32 each
  int64_t class_names = 0;   // a line for each class, from class 0 on
  int64_t end = 0;
};
// Both numbers at most kMaxIndexedTokens.
DocumentIndexSections LayOutDocumentIndex(uint8_t flags, int64_t num_tokens, int64_t num_documents,
                                          int64_t class_names_bytes);

// A document index in memory that others own and keep.
//
// Threads: safe; fixed after construction.
class DocumentIndexBytes {
 public:
  // Looks at every byte but those of the counted bitmap. Cost: one pass over the sections but the bitmap.
  // Errors: INVALID_ARGUMENT naming field, offset, the value and what is allowed
  static absl::StatusOr<DocumentIndexBytes> Parse(absl::Span<const std::byte> bytes);
  // Looks at the header and the length alone: nothing may be asked of single documents and tokens. Errors: Parse's
  static absl::StatusOr<DocumentIndexBytes> ParseHeader(absl::Span<const std::byte> bytes);

  uint8_t flags() const { return flags_; }
  int token_bytes() const { return token_bytes_; }
  int64_t num_tokens() const { return num_tokens_; }
  int64_t num_documents() const { return num_documents_; }
  std::string fingerprint_hex() const;

  // As DocumentIndex has them: `document` in [0, num_documents()], but for the first in [0, num_documents()).
  int64_t first_token(int64_t document) const;
  bool is_counted(int64_t token) const;
  int64_t num_counted(int64_t begin, int64_t end) const;
  std::optional<int32_t> label(int64_t document) const;
  int64_t second_part(int64_t document) const;
  std::vector<std::string> class_names() const;

 private:
  explicit DocumentIndexBytes(absl::Span<const std::byte> bytes) : bytes_(bytes) {}

  absl::Status CheckHeader();
  absl::Status CheckLength() const;
  absl::Status CheckFirstTokens() const;
  absl::Status CheckLabels() const;
  absl::Status CheckSecondParts() const;
  absl::Status CheckClassNames() const;
  absl::Status CheckPadding(int64_t begin, int64_t end, const char* section) const;

  absl::Span<const std::byte> bytes_;
  uint8_t flags_ = 0;
  int token_bytes_ = 0;
  int64_t num_tokens_ = 0;
  int64_t num_documents_ = 0;
  int64_t class_names_bytes_ = 0;
  DocumentIndexSections sections_;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_DOCUMENT_INDEX_BYTES_H_
