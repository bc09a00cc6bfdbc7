#ifndef EPS_COMMON_FORMATS_DOCUMENT_INDEX_HEADER_H_
#define EPS_COMMON_FORMATS_DOCUMENT_INDEX_HEADER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"

namespace eps {

// What the header of a document index says of its token file: document_index.h.
struct DocumentIndexHeader {
  int token_bytes = 2;
  int64_t num_tokens = 0;
  int64_t num_documents = 0;
  bool may_be_cut = true;
  bool counts_all = true;  // no token is left out of the loss
  std::string tokenizer_fingerprint;

  // Whether its tokens can be read as one long text, and nothing is lost.
  bool may_be_joined() const { return may_be_cut && counts_all; }
  friend bool operator==(const DocumentIndexHeader&, const DocumentIndexHeader&) = default;
};

// Looks at the header and the length alone, however long the file is.
// Errors: NOT_FOUND · INVALID_ARGUMENT naming the file, field, offset, the value and what is allowed
absl::StatusOr<DocumentIndexHeader> ReadDocumentIndexHeader(const std::string& path);

}  // namespace eps

#endif  // EPS_COMMON_FORMATS_DOCUMENT_INDEX_HEADER_H_
