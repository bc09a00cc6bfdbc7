#include "eps_server/data/document_log.h"

#include "common/base/log.h"

namespace eps::server {

void LogDocuments(const std::string& path, int64_t context, const SampleSource& source,
                  const std::optional<DocumentFigures>& figures) {
  if (!figures.has_value()) return;
  LogInfo("data_documents", {{"path", path},
                             {"documents", figures->documents},
                             {"tokens", figures->tokens},
                             {"samples", source.num_samples()},
                             {"counted_tokens", figures->counted_tokens},
                             {"documents_ended_early", figures->ended_early},
                             {"documents_left_out", figures->left_out}});
  if (figures->ended_early == 0 && figures->left_out == 0) return;
  LogWarning("documents_ended_early", {{"path", path},
                                       {"documents", figures->ended_early},
                                       {"tokens_left_out", figures->tokens_left_out},
                                       {"documents_left_out", figures->left_out},
                                       {"context", context}});
}

}  // namespace eps::server
