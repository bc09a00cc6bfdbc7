#ifndef EPS_SERVER_DATA_CORPUS_TOKENS_H_
#define EPS_SERVER_DATA_CORPUS_TOKENS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

namespace eps::server {

// `run`, with data that is a token file: as it is, or, where run.data needs tokenizing, with one in `folder`, which is
// made here and begins with what it was made from. One that is there already and was made from the same is taken.
//
// Threads: encodes on `threads`
// Errors:  TokenizeCorpus's and LoadTokenizer's, naming data's field · INVALID_ARGUMENT the tokenizer has more tokens
//          than the model. After one, no token file is left in `folder`
absl::StatusOr<RunConfig> WithTokenFile(const RunConfig& run, const std::string& folder, int threads);
// The same for each of run.sources, in folders of their own: `folder`/0, `folder`/1, ...
absl::StatusOr<RunConfig> WithTokenFiles(const RunConfig& run, const std::string& folder, int threads);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_CORPUS_TOKENS_H_
