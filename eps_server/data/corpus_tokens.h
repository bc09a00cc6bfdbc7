#ifndef EPS_SERVER_DATA_CORPUS_TOKENS_H_
#define EPS_SERVER_DATA_CORPUS_TOKENS_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

namespace eps::server {

// What becomes of a token file that an earlier version of this program made from the same, as far as it says.
enum class FormerTokens {
  kMadeAnew,  // by today's rules
  kTaken,     // of a run that goes on: what it began with may have been cut and marked by others
};

// `run`, with data that is a token file: as it is, or, where run.data needs tokenizing, with one in `folder`, which is
// made here, with tokens.json, which says from what. One that is there already and was made from the same is taken.
// Of such a one the result's data.chat_template is that by which its conversations were written, never "auto"; "": it
// holds none, or an earlier version made it, which did not say.
//
// Threads: encodes on `threads`
// Errors:  TokenizeCorpus's and LoadTokenizer's, naming data's field · INVALID_ARGUMENT the tokenizer has more tokens
//          than the model · the system's. After any but the last, what is in `folder` is as it was
absl::StatusOr<RunConfig> WithTokenFile(const RunConfig& run, const std::string& folder, int threads,
                                        FormerTokens former = FormerTokens::kMadeAnew);
// The same for each of run.sources, in folders of their own: `folder`/0, `folder`/1, ...
absl::StatusOr<RunConfig> WithTokenFiles(const RunConfig& run, const std::string& folder, int threads,
                                         FormerTokens former = FormerTokens::kMadeAnew);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_CORPUS_TOKENS_H_
