#ifndef EPS_COMMON_SAMPLES_PLACE_OF_CLASS_H_
#define EPS_COMMON_SAMPLES_PLACE_OF_CLASS_H_

#include <cstdint>
#include <string>

#include "common/formats/document_index.h"
#include "common/spec/run_config.h"

namespace eps {

// Where a class of a token file, by the file's own number, is met first, for the middle of a message: in a table that was
// tokenized at the run's start "reviews.tsv, line 12, byte offset 345,"; else as DataConfig::DocumentName names it.
// Cost: reads the table up to there
std::string PlaceOfClass(const DataConfig& data, const DocumentIndex& index, int32_t number);

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_PLACE_OF_CLASS_H_
