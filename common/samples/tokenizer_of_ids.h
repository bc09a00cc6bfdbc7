#ifndef EPS_COMMON_SAMPLES_TOKENIZER_OF_IDS_H_
#define EPS_COMMON_SAMPLES_TOKENIZER_OF_IDS_H_

#include "absl/status/status.h"
#include "common/spec/run_config.h"

namespace eps {

// That the run's token files hold ids of its model's tokenizer, as their document indexes say; without model.from, that
// evaluation.path holds ids of the tokenizer of the data. Nothing is said where a file has no index, or the folder of
// model.from no tokenizer that can be read.
// Errors: INVALID_ARGUMENT naming the file's field, and both tokenizers
absl::Status CheckTokenizerOfIds(const RunConfig& run);

// Logs a warning for each data.tokenizer_path that is another tokenizer than that of model.from: it is taken, as a model may
// be taught another one, or its own with more tokens.
void WarnOfOtherTokenizers(const RunConfig& run);

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_TOKENIZER_OF_IDS_H_
