#include "eps_server/data/step_data.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/samples/token_masking.h"

namespace eps::server {

absl::StatusOr<std::unique_ptr<StepData>> StepData::Create(const RunConfig& run) {
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<SampleSource> source, SampleSource::Open(run));
  EPS_RETURN_IF_ERROR(source->CheckIds());
  return std::unique_ptr<StepData>(new StepData(run, std::move(source)));
}

StepData::StepData(const RunConfig& run, std::unique_ptr<SampleSource> source)
    : run_(run),
      source_(std::move(source)),
      order_(source_->num_samples(), run.data.order == DataOrder::kShuffled, run.data.seed) {}

absl::StatusOr<std::vector<VnodeBatch>> StepData::Read(StepId step) const {
  const BatchConfig& batch = run_.batch;
  const auto context = static_cast<size_t>(run_.model.context);
  std::vector<VnodeBatch> batches(static_cast<size_t>(batch.virtual_nodes));
  int64_t place = step.value() * batch.sequences_per_step();
  for (int v = 0; v < batch.virtual_nodes; ++v) {
    batches[v].vnode = v;
    for (int64_t i = 0; i < batch.sequences_per_vnode(); ++i, ++place) {
      EPS_RETURN_IF_ERROR_WITH(source_->Append(order_.SampleAt(place), batches[v]),
                               absl::StrCat("step ", step.value(), ", vnode ", v));
      if (run_.objective() != Objective::kMaskedTokens) continue;
      MaskTokens(run_.data.mask, run_.model.vocab, run_.data.seed, place,
                 absl::MakeSpan(batches[v].tokens).last(context), absl::MakeSpan(batches[v].labels).last(context));
    }
  }
  return batches;
}

int64_t CountedTokens(const VnodeBatch& batch) {
  return static_cast<int64_t>(batch.labels.size()) - std::count(batch.labels.begin(), batch.labels.end(), kNotCounted);
}

}  // namespace eps::server
