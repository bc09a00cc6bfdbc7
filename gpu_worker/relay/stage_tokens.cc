#include "gpu_worker/relay/stage_tokens.h"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

namespace eps::worker {

void StageTokens(absl::Span<const RelayStep> steps, absl::Span<const VnodeBatch> batches, const LayerShape& shape,
                 int micro_batches, const PassMemory& memory) {
  const auto row_bytes = static_cast<size_t>(shape.M()) * sizeof(int32_t);
  for (const RelayStep& step : steps) {
    if (step.kind != RelayStep::Kind::kLoadTokens) continue;
    const VnodeBatch& batch = batches[static_cast<size_t>(step.vnode)];
    const auto first = static_cast<size_t>(step.micro_batch * shape.M());
    std::byte* tokens = memory.Tokens(int64_t{step.vnode} * micro_batches + step.micro_batch, shape).data();
    std::memcpy(tokens, batch.tokens.data() + first, row_bytes);
    std::memcpy(tokens + shape.labels_offset_bytes(), batch.labels.data() + step.micro_batch * shape.num_labels(),
                static_cast<size_t>(shape.num_labels()) * sizeof(int32_t));
    if (shape.has_types && batch.types.empty()) std::memset(tokens + shape.types_offset_bytes(), 0, row_bytes);
    if (!batch.types.empty()) {
      std::memcpy(tokens + shape.types_offset_bytes(), batch.types.data() + first, row_bytes);
    }
    if (!shape.has_documents) continue;
    const absl::Span<const int32_t> documents =
        absl::MakeConstSpan(batch.document_first).subspan(first, static_cast<size_t>(shape.M()));
    std::memcpy(tokens + shape.document_first_offset_bytes(), documents.data(), row_bytes);
    const std::vector<int32_t> ends = DocumentEnds(documents, shape.T).value();  // CheckAssignment has looked at them
    std::memcpy(tokens + shape.document_end_offset_bytes(), ends.data(), row_bytes);
  }
}

}  // namespace eps::worker
