#ifndef EPS_COMMON_CORPUS_CORPUS_WRITER_H_
#define EPS_COMMON_CORPUS_CORPUS_WRITER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/pending_file.h"
#include "common/corpus/document_encoder.h"
#include "common/formats/document_index_writer.h"

namespace eps {

struct CorpusCounts {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t counted_tokens = 0;
  int64_t longest_document = 0;     // in tokens
  int64_t empty_documents = 0;      // left out: without a token
  int64_t uncounted_documents = 0;  // left out: with tokens, of which none is counted
};

// Writes a token file and its document index from units in order.
//
// Threads: one at a time.
class CorpusWriter {
 public:
  struct Options {
    std::string path;  // of the token file
    DocumentIndexWriter::Options index;
    std::optional<int32_t> first_token;  // of every document
    std::optional<int32_t> last_token;
    bool keeps_own_ends = false;  // a document that begins or ends with that token gets no second one
  };
  // Nothing is at `path` before Finish. Errors: DocumentIndexWriter::Create's, file errors
  static absl::StatusOr<std::unique_ptr<CorpusWriter>> Create(const Options& options);

  absl::Status Add(const EncodedBatch& batch);
  // After OK both files are there and on the disk. Errors: INVALID_ARGUMENT no documents, saying what became of
  // those that there were · file errors; then neither is
  absl::Status Finish();
  const CorpusCounts& counts() const { return counts_; }

 private:
  // The document that was begun.
  struct Document {
    int64_t num_tokens = 0;
    bool ends_itself = false;  // with last_token
    bool all_counted = true;
    std::vector<TokenRange> counted;
    std::optional<int32_t> label;
    std::optional<int64_t> second_part;
  };

  CorpusWriter(const Options& options, std::unique_ptr<PendingFile> file, std::unique_ptr<DocumentIndexWriter> index)
      : options_(options), file_(std::move(file)), index_(std::move(index)) {}

  absl::Status AddUnit(const EncodedUnit& unit, absl::string_view tokens);
  absl::Status EndDocument();
  absl::Status AppendToken(std::optional<int32_t> id);
  // Whether a unit's token of that index is `id`, and the document's own end.
  bool IsOwnEnd(absl::string_view tokens, int64_t index, std::optional<int32_t> id) const;
  absl::Status Append(absl::string_view tokens);
  absl::Status Flush();

  const Options options_;
  const std::unique_ptr<PendingFile> file_;
  const std::unique_ptr<DocumentIndexWriter> index_;
  std::string buffer_;
  Document document_;
  CorpusCounts counts_;
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_CORPUS_WRITER_H_
