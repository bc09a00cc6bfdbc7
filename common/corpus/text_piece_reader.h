#ifndef EPS_COMMON_CORPUS_TEXT_PIECE_READER_H_
#define EPS_COMMON_CORPUS_TEXT_PIECE_READER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/corpus/sequential_file.h"

namespace eps {

// A part of a document of plain text.
struct TextPiece {
  std::string text;
  int64_t offset_bytes = 0;  // of its first byte in the file
  bool starts_document = false;
  bool ends_document = false;
};

// Where a text that goes on is best cut, in its second half: behind the last newline between two characters that are not
// white space, which no tokenizer of ours joins with either; else in front of the last white space behind a word, which
// stays with what follows it, of line ends where there is no other; else, at its end, between two UTF-8 characters. In
// (0, text.size()]; text is not empty.
size_t TextCut(absl::string_view text);

// The documents of a file of plain text, in pieces, so that neither a long file nor a long document has to fit in
// memory. A document is the whole file, or what lies between two lines that are `separator`. A byte order mark that
// the file begins with is no part of it. Where pieces end depends on the text alone.
//
// Threads: one at a time.
class TextPieceReader {
 public:
  // Only a document of more bytes than this is cut. Tokens of a text that is encoded in pieces can differ from those of
  // the whole at a cut, and with a tokenizer that puts a space before every text they do, by that space: one token at each
  // cut, and a word where there is no white space to cut at.
  static constexpr size_t kPieceBytes = 1 << 20;

  // `separator`: "" is an empty line; nullopt: none. Errors: SequentialFile::Open's · INVALID_ARGUMENT a separator with a
  // newline, or too long
  static absl::StatusOr<std::unique_ptr<TextPieceReader>> Open(const std::string& path,
                                                               const std::optional<std::string>& separator,
                                                               size_t piece_bytes = kPieceBytes);

  // False at the end. Documents may be empty. Errors: file errors
  absl::StatusOr<bool> Next(TextPiece& piece);

  int64_t offset_bytes() const { return offset_; }  // of what was read so far

 private:
  TextPieceReader(std::unique_ptr<SequentialFile> file, std::optional<std::string> separator, size_t piece_bytes)
      : file_(std::move(file)), separator_(std::move(separator)), piece_bytes_(piece_bytes) {}

  absl::Status FillBuffer();
  // Whether the buffer ends within a line that could become a separator.
  bool MayBeCutSeparator() const;
  // Moves some of the buffer to the document; true where the document has ended.
  bool TakeSome();
  TextPiece Emit(size_t num_bytes, bool ends_document);

  const std::unique_ptr<SequentialFile> file_;
  const std::optional<std::string> separator_;
  const size_t piece_bytes_;
  std::string buffer_;  // read; before start_ it was taken
  size_t start_ = 0;
  bool file_ended_ = false;
  bool at_line_start_ = true;
  bool separated_ = false;       // the last thing taken was a separator
  std::string document_;         // what is known of the document and not given out
  int64_t document_offset_ = 0;  // of its first byte in the file
  bool fresh_ = true;            // nothing of it was given out
  bool document_ended_ = false;
  int64_t offset_ = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_TEXT_PIECE_READER_H_
