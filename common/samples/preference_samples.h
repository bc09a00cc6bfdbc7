#ifndef EPS_COMMON_SAMPLES_PREFERENCE_SAMPLES_H_
#define EPS_COMMON_SAMPLES_PREFERENCE_SAMPLES_H_

#include <memory>

#include "absl/status/statusor.h"
#include "common/formats/document_index.h"
#include "common/formats/token_file.h"
#include "common/samples/sample_source.h"
#include "common/spec/run_config.h"

namespace eps {

// Pairs of answers: of each document two sequences, the first part, which was preferred, and the second, each padded to
// model.context. What is longer loses its end; a pair of which either sequence is left without a counted token, or both
// with the same tokens, is left out.
// Errors: INVALID_ARGUMENT a document that is no pair; every pair is left out
absl::StatusOr<std::unique_ptr<SampleSource>> MakePreferenceSamples(const RunConfig& run,
                                                                    std::unique_ptr<TokenFile> file,
                                                                    std::unique_ptr<DocumentIndex> index);

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_PREFERENCE_SAMPLES_H_
