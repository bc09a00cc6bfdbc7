#ifndef EPS_CLI_TOKEN_VIEW_H_
#define EPS_CLI_TOKEN_VIEW_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "common/corpus/tokenize_corpus.h"
#include "common/formats/document_index.h"
#include "common/formats/token_file.h"
#include "common/tokenizer/tokenizer.h"

namespace eps::cli {

// One line of a corpus that is being tokenized, at most `width` characters:
//   [#######-------------]  35%  12.3 MiB of 34.9 MiB  1234 documents  3210000 tokens  5.6 MB/s  eta 0:12
std::string TokenizeProgressLine(const TokenizeProgress& progress, int width);

// Some lines about what was written to `out`.
std::string TokenizeSummary(const TokenizeReport& report, const std::string& out);

// A token file in one line, and then a document: its place, its class, and its tokens, decoded where there is a
// tokenizer, at most `max_tokens` of them. What is counted stands in {+ and +}, special tokens in { and }; of ids,
// counted ones have a + in front.
// Errors: TokenFile::Read's · INVALID_ARGUMENT the tokenizer is not the one that made the ids
std::string ShowTokenFile(const DocumentIndex& index, const std::string& path);
absl::StatusOr<std::string> ShowDocument(const TokenFile& file, const DocumentIndex& index, int64_t document,
                                         const Tokenizer* tokenizer, int64_t max_tokens);

}  // namespace eps::cli

#endif  // EPS_CLI_TOKEN_VIEW_H_
