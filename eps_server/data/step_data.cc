#include "eps_server/data/step_data.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps::server {
absl::StatusOr<std::unique_ptr<StepData>> StepData::Create(const RunConfig& run) {
  EPS_ASSIGN_OR_RETURN(const std::shared_ptr<const SampleSource> source, SampleSource::Open(run));
  EPS_RETURN_IF_ERROR(source->CheckIds());
  const int64_t held_out = run.evaluation.HeldOut(source->num_samples());
  if (run.evaluation.held_out > 0 && held_out == 0) {
    return absl::InvalidArgumentError(absl::StrCat("evaluation.held_out: ", run.evaluation.held_out, ", but ",
                                                   run.data.path, " has one sample; it takes two, one to train on"));
  }
  const int64_t trained = source->num_samples() - held_out;
  return std::unique_ptr<StepData>(new StepData(run, {source, 0, trained}, {source, trained, held_out}));
}

StepData::StepData(const RunConfig& run, SampleRange trained, SampleRange held_out)
    : batch_(run.batch),
      trained_(std::move(trained)),
      held_out_(std::move(held_out)),
      order_(trained_.count, run.data.order == DataOrder::kShuffled, run.data.seed) {}

absl::StatusOr<std::vector<VnodeBatch>> StepData::Read(StepId step) const {
  std::vector<VnodeBatch> batches(static_cast<size_t>(batch_.virtual_nodes));
  int64_t place = step.value() * batch_.sequences_per_step();
  for (int v = 0; v < batch_.virtual_nodes; ++v) {
    batches[v].vnode = v;
    for (int64_t i = 0; i < batch_.sequences_per_vnode(); ++i, ++place) {
      EPS_RETURN_IF_ERROR_WITH(trained_.Append(order_.SampleAt(place), batches[v]),
                               absl::StrCat("step ", step.value(), ", vnode ", v));
    }
  }
  return batches;
}

int64_t CountedTokens(const VnodeBatch& batch) {
  constexpr int32_t kNotCounted = -100;
  return static_cast<int64_t>(batch.labels.size()) - std::count(batch.labels.begin(), batch.labels.end(), kNotCounted);
}

}  // namespace eps::server
