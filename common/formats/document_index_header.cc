#include "common/formats/document_index_header.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_bytes.h"
#include "common/formats/mapped_file.h"

namespace eps {

absl::StatusOr<DocumentIndexHeader> ReadDocumentIndexHeader(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const absl::StatusOr<DocumentIndexBytes> index = DocumentIndexBytes::ParseHeader(file->bytes());
  EPS_RETURN_IF_ERROR_WITH(index.status(), absl::StrCat("\"", path, "\""));
  return DocumentIndexHeader{.token_bytes = index->token_bytes(),
                             .num_tokens = index->num_tokens(),
                             .num_documents = index->num_documents(),
                             .may_be_cut = (index->flags() & kMayBeCut) != 0,
                             .counts_all = (index->flags() & kHasCounted) == 0,
                             .tokenizer_fingerprint = index->fingerprint_hex()};
}

}  // namespace eps
