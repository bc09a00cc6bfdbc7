#include "common/formats/document_index.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index_bytes.h"
#include "common/formats/mapped_file.h"

namespace eps {
namespace {

class MappedDocumentIndex final : public DocumentIndex {
 public:
  MappedDocumentIndex(std::unique_ptr<MappedFile> file, DocumentIndexBytes index)
      : file_(std::move(file)),
        index_(index),
        fingerprint_(index.fingerprint_hex()),
        class_names_(index.class_names()) {}

  int64_t num_tokens() const override { return index_.num_tokens(); }
  int token_bytes() const override { return index_.token_bytes(); }
  int64_t num_documents() const override { return index_.num_documents(); }
  const std::string& tokenizer_fingerprint() const override { return fingerprint_; }
  int64_t first_token(int64_t document) const override { return index_.first_token(document); }
  bool is_counted(int64_t token) const override { return index_.is_counted(token); }
  int64_t num_counted(int64_t begin, int64_t end) const override { return index_.num_counted(begin, end); }
  bool may_be_cut() const override { return (index_.flags() & kMayBeCut) != 0; }
  std::optional<int32_t> label(int64_t document) const override { return index_.label(document); }
  int64_t second_part(int64_t document) const override { return index_.second_part(document); }
  const std::vector<std::string>& class_names() const override { return class_names_; }

 private:
  const std::unique_ptr<MappedFile> file_;
  const DocumentIndexBytes index_;  // of file_'s bytes
  const std::string fingerprint_;
  const std::vector<std::string> class_names_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DocumentIndex>> DocumentIndex::Open(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const absl::StatusOr<DocumentIndexBytes> index = DocumentIndexBytes::Parse(file->bytes());
  EPS_RETURN_IF_ERROR_WITH(index.status(), absl::StrCat("\"", path, "\""));
  return std::make_unique<MappedDocumentIndex>(std::move(file), *index);
}

}  // namespace eps
