#ifndef EPS_COMMON_TOKENIZER_TOKENIZER_FILE_H_
#define EPS_COMMON_TOKENIZER_TOKENIZER_FILE_H_

#include <string>

#include "absl/status/statusor.h"

namespace eps {

// What LoadTokenizer reads of `path`: of a folder its tokenizer.json, else its tokenizer.model; else `path` itself, whether
// it is there or not.
// Errors: NOT_FOUND neither is in the folder
absl::StatusOr<std::string> FindTokenizerFile(const std::string& path);

// Whether there is one to read.
bool HasTokenizerFile(const std::string& path);

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_TOKENIZER_FILE_H_
