#ifndef EPS_SERVER_DATA_DOCUMENT_LOG_H_
#define EPS_SERVER_DATA_DOCUMENT_LOG_H_

#include <cstdint>
#include <optional>
#include <string>

#include "common/samples/sample_source.h"

namespace eps::server {

// Logs what became of the documents of the file at `path`, whose samples are of `context` tokens, with a warning where some
// are cut short or left out. figures: `source`'s; nullopt, where documents are not seen alone: nothing is said.
void LogDocuments(const std::string& path, int64_t context, const SampleSource& source,
                  const std::optional<DocumentFigures>& figures);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_DOCUMENT_LOG_H_
