#ifndef EPS_COMMON_SAMPLES_CLASSIFIED_SAMPLES_H_
#define EPS_COMMON_SAMPLES_CLASSIFIED_SAMPLES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "common/formats/document_index.h"
#include "common/formats/token_file.h"
#include "common/samples/sample_source.h"
#include "common/spec/run_config.h"

namespace eps {

// One document a sample, then padding, which is a document too; its class, as the model numbers it, is the sample's label.
// The second of a pair of texts has type 1. What is longer than a sample loses tokens of the longer text, or of both when
// they are as long, but never a text's last token, which ends it.
// Errors: INVALID_ARGUMENT the documents have no classes, or others than the model · pairs for a model of one type
absl::StatusOr<std::unique_ptr<SampleSource>> MakeClassifiedSamples(const RunConfig& run,
                                                                    std::unique_ptr<TokenFile> file,
                                                                    std::unique_ptr<DocumentIndex> index);

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_CLASSIFIED_SAMPLES_H_
