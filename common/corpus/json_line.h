#ifndef EPS_COMMON_CORPUS_JSON_LINE_H_
#define EPS_COMMON_CORPUS_JSON_LINE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/corpus/line_reader.h"
#include "nlohmann/json.hpp"

namespace eps {

struct JsonLine {
  nlohmann::json object;
  int64_t replaced_surrogates = 0;
};

// The object that a line of JSONL is. Halves of surrogate pairs, which Python's json.dumps writes as "\ud83d", are no
// characters: each is U+FFFD, and they are counted. All texts are valid UTF-8.
//
// Errors: INVALID_ARGUMENT naming the line, the byte offset of what is wrong, and what that is; a key that an object has
//         twice is wrong, too, wherever it lies
absl::StatusOr<JsonLine> ParseJsonLine(const TextLine& line);

}  // namespace eps

#endif  // EPS_COMMON_CORPUS_JSON_LINE_H_
