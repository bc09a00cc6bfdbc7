#ifndef EPS_COMMON_FORMATS_DOCUMENT_INDEX_WRITER_H_
#define EPS_COMMON_FORMATS_DOCUMENT_INDEX_WRITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace eps {

// Tokens of a document, counted from its first: [begin, end).
struct TokenRange {
  int64_t begin = 0;
  int64_t end = 0;
  friend bool operator==(const TokenRange&, const TokenRange&) = default;
};

// The name of the index of a token file.
std::string DocumentIndexPath(const std::string& token_path);

// Writes a document index, document by document. Its memory does not grow with the file.
//
// Threads: one at a time.
class DocumentIndexWriter {
 public:
  struct Options {
    int token_bytes = 2;                // of the token file: 2 or 4
    std::string tokenizer_fingerprint;  // Tokenizer::fingerprint
    bool may_be_cut = true;
    bool has_labels = false;  // then every document has one
    // Of class 0, 1, ...: lines, none empty, at most kMaxClassNamesBytes; only with labels. Empty: numbers.
    std::vector<std::string> class_names = {};
  };
  struct Document {
    int64_t num_tokens = 0;                // at least 1
    absl::Span<const TokenRange> counted;  // rising, none empty, no two overlap
    std::optional<int32_t> label;          // >= 0
    std::optional<int64_t> second_part;    // in [1, num_tokens)
  };

  // Nothing is done to what is at `path` before Finish.
  // Errors: INVALID_ARGUMENT naming the option · file errors
  static absl::StatusOr<std::unique_ptr<DocumentIndexWriter>> Create(const std::string& path, const Options& options);
  // Without Finish nothing is left behind.
  virtual ~DocumentIndexWriter() = default;

  // Errors: INVALID_ARGUMENT naming the document and the field · file errors; then it stays failed
  virtual absl::Status Add(const Document& document) = 0;
  // After OK the index is whole and on the disk, but `path` is still as it was: what may fail is behind.
  // Errors: INVALID_ARGUMENT no document was added · file errors
  virtual absl::Status Complete() = 0;
  // After OK the index is at `path`. Calls Complete unless it was called. Errors: Complete's, file errors
  virtual absl::Status Finish() = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_DOCUMENT_INDEX_WRITER_H_
