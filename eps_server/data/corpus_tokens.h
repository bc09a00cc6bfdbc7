#ifndef EPS_SERVER_DATA_CORPUS_TOKENS_H_
#define EPS_SERVER_DATA_CORPUS_TOKENS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

namespace eps {
class LongWork;
}  // namespace eps

namespace eps::server {

// What becomes of a token file that is there already.
enum class FormerTokens {
  // It is made anew in its place: a run that begins reads its data itself, as nothing that is cheap to look at says for
  // sure that a large file is as it was.
  kReplaced,
  // Of a run that goes on: it is taken if it was made from the same, as far as it says, also by an earlier version of this
  // program: what the run began with may have been cut and marked by other rules. One that is damaged is not taken, and
  // the log says so. What has to be made lies beside it until AcceptNewTokens.
  kKept,
};

// `run`, with data that is a token file: as it is, or, where run.data needs tokenizing, with one in `folder`, which is
// made here, with tokens.json, which says from what, and its sums, unless there is one to take.
// Of such a one the result's data.chat_template is that by which its conversations were written, never "auto"; "": it
// holds none, or an earlier version made it, which did not say.
//
// `work` is told how far it is; null: nobody is.
//
// Threads: encodes on `threads`
// Errors:  TokenizeCorpus's and LoadTokenizer's, naming data's field · INVALID_ARGUMENT most of the tokenizer's
//          tokens, or one that the data have, are not the model's · CANCELLED by `work` · the system's. After any but
//          the last, what is in `folder` is as it was
absl::StatusOr<RunConfig> WithTokenFile(const RunConfig& run, const std::string& folder, int threads,
                                        FormerTokens former = FormerTokens::kReplaced, LongWork* work = nullptr);
// The same for each of run.sources, in folders of their own: `folder`/0, `folder`/1, ...
absl::StatusOr<RunConfig> WithTokenFiles(const RunConfig& run, const std::string& folder, int threads,
                                         FormerTokens former = FormerTokens::kReplaced, LongWork* work = nullptr);

// Whether kKept left anything in `folder` or the folders in it.
bool HoldsNewTokens(const std::string& folder);
// Of `folder` and the folders in it: puts what kKept left beside a token file in its place. Who has it open reads on.
// Errors: the system's
absl::Status AcceptNewTokens(const std::string& folder);
// Removes it.
void DropNewTokens(const std::string& folder);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_CORPUS_TOKENS_H_
