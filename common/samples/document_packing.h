#ifndef EPS_COMMON_SAMPLES_DOCUMENT_PACKING_H_
#define EPS_COMMON_SAMPLES_DOCUMENT_PACKING_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"

namespace eps {

// Rows of one document that stand in one sample. A document of n tokens has n - 1 rows: row i is given token i, and is to
// predict token i + 1.
struct DocumentPiece {
  int64_t document = 0;
  int64_t first_row = 0;  // within the document
  int64_t num_rows = 0;   // at least 1
  friend bool operator==(const DocumentPiece&, const DocumentPiece&) = default;
};

// Which documents a sample consists of: its pieces, one behind the other. Memory: 24 bytes a piece, 8 a sample.
class DocumentPacking {
 public:
  struct Options {
    int64_t context = 0;      // rows of a sample, at least 1
    bool may_be_cut = false;  // a document of more rows becomes several pieces; else it ends where a sample does
    bool packs = true;        // else each piece has a sample of its own
    // Whether a piece is of use; one that is not takes no place. Null: all are.
    std::function<bool(const DocumentPiece&)> is_wanted = nullptr;
  };
  // By the documents' rows and what is wanted alone, so that every run of the same data packs alike. Best fit, a pass
  // over the documents: each piece goes where the least room is left over, of the open samples, of two alike into the one
  // that was begun first. One in which no room is left is closed; where kOpenSamples are open and none has room for a
  // piece, the fullest is closed, and the piece begins another. Samples are numbered in the order in which they were
  // begun, and the pieces of one stand in the order of the documents.
  // Documents without rows are left out.
  DocumentPacking(absl::Span<const int64_t> rows_of_documents, const Options& options);

  int64_t num_samples() const { return static_cast<int64_t>(begins_.size()) - 1; }
  absl::Span<const DocumentPiece> pieces(int64_t sample) const;
  int64_t num_rows() const { return num_rows_; }               // of all pieces; the other rows are padding
  int64_t num_rows_left_out() const { return num_left_out_; }  // of documents that were ended early
  int64_t num_documents_ended_early() const { return num_ended_early_; }
  int64_t num_documents_unwanted() const { return num_unwanted_; }  // with rows, but with no piece that is wanted

  static constexpr int kOpenSamples = 64;

 private:
  std::vector<DocumentPiece> pieces_;  // by sample
  std::vector<int64_t> begins_;        // of each sample's pieces, and of what would follow
  int64_t num_rows_ = 0, num_left_out_ = 0, num_ended_early_ = 0, num_unwanted_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_DOCUMENT_PACKING_H_
