#ifndef EPS_COMMON_CORPUS_DATA_FORM_H_
#define EPS_COMMON_CORPUS_DATA_FORM_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// What a file of data holds: the same for a run and for `eps tokenize`.
enum class DataForm {
  kText,      // plain text
  kJsonl,     // common/corpus/jsonl.h
  kTable,     // common/corpus/tsv.h
  kTokenIds,  // common/formats/token_file.h
};

// By the ending of its name, in capitals or not: .jsonl, .ndjson and .json; .tsv; .bin; anything else is text.
DataForm DataFormOfName(absl::string_view path);

// The file's first bytes, as many as the checks below look at. Errors: the system's · INVALID_ARGUMENT no regular file
absl::StatusOr<std::string> ReadBeginning(const std::string& path);

// Whether a file that begins so can be of that form. What is packed or compressed is none, JSON is no plain text, and a
// JSON array is no JSONL. Token ids may begin with any bytes, but not with many that are all a text's.
// Errors: INVALID_ARGUMENT what it looks like, and what to do: to be put behind the file's name
absl::Status CheckBeginning(DataForm form, absl::string_view beginning);

// Whether its first bytes name it: packed, compressed, Parquet, a pointer of Git LFS. It is never meant to be trained
// on.
bool HasKnownSignature(absl::string_view beginning);

// Whether it consists of characters in one of the encodings that have no zero bytes, of which UTF-8 is one.
// Errors: CheckBeginning's
absl::Status CheckCharacters(absl::string_view beginning);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_DATA_FORM_H_
