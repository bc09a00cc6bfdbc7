#include "eps_server/data/evaluation_data.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/long_work.h"
#include "common/base/status_macros.h"
#include "common/samples/class_names.h"
#include "eps_server/data/document_log.h"

namespace eps::server {
namespace {

// `part` of `whole` times `total`, rounded down; all are below 2^62.
int64_t Share(int64_t total, int64_t part, int64_t whole) {
  return static_cast<int64_t>(static_cast<__int128>(total) * part / whole);
}

}  // namespace

absl::StatusOr<std::unique_ptr<EvaluationData>> EvaluationData::Open(const RunConfig& run, const StepData* training,
                                                                     const std::string& folder, int threads,
                                                                     FormerTokens former, LongWork* work) {
  if (run.evaluation.path.empty()) return std::make_unique<EvaluationData>(run, training->held_out());
  RunConfig of_path = run;
  of_path.data = run.evaluation_data();
  EPS_ASSIGN_OR_RETURN(const RunConfig of_tokens, WithTokenFile(of_path, folder, threads, former, work));
  EPS_RETURN_IF_ERROR(CheckClassesOfEvaluation(of_path, of_tokens));
  EPS_ASSIGN_OR_RETURN(std::shared_ptr<const SampleSource> source, SampleSource::Open(of_tokens));
  EPS_RETURN_IF_ERROR(source->CheckIds(work));
  LogDocuments(of_tokens.data.path, run.model.context, *source, source->CountDocuments());
  const int64_t num_samples = source->num_samples();
  return std::make_unique<EvaluationData>(
      run, std::vector<SampleRange>{{std::move(source), 0, num_samples, run.data.has_documents()}});
}

EvaluationData::EvaluationData(const RunConfig& run, std::vector<SampleRange> ranges)
    : batch_(run.batch),
      context_(run.model.context),
      labels_per_sequence_(run.model.labels_per_sample()),
      sequences_per_sample_(run.sequences_per_sample()),
      has_documents_(run.data.has_documents()) {
  int64_t there = 0;
  for (const SampleRange& range : ranges) there += range.count;
  const int64_t wanted = run.evaluation.samples > 0 ? std::min(run.evaluation.samples, there) : there;
  int64_t passed = 0;
  for (SampleRange& range : ranges) {
    const int64_t taken_before = Share(wanted, passed, there);
    passed += range.count;
    range.count = Share(wanted, passed, there) - taken_before;
    num_samples_ += range.count;
    if (range.count > 0) ranges_.push_back(std::move(range));
  }
  EPS_CHECK(num_samples_ >= 1);
}

int64_t EvaluationData::num_rounds() const {
  const int64_t per_round = batch_.sequences_per_step() / sequences_per_sample_;
  return (num_samples_ + per_round - 1) / per_round;
}

absl::StatusOr<std::vector<VnodeBatch>> EvaluationData::Read(int64_t round) const {
  std::vector<VnodeBatch> batches(static_cast<size_t>(batch_.virtual_nodes));
  int64_t sample = round * batch_.sequences_per_step() / sequences_per_sample_;
  for (int v = 0; v < batch_.virtual_nodes; ++v) {
    batches[v].vnode = v;
    for (int64_t i = 0; i < batch_.sequences_per_vnode(); i += sequences_per_sample_, ++sample) {
      EPS_RETURN_IF_ERROR_WITH(Append(sample, batches[v]), absl::StrCat("round ", round, ", vnode ", v));
    }
  }
  return batches;
}

absl::Status EvaluationData::Append(int64_t sample, VnodeBatch& batch) const {
  const int64_t place = sample;  // the same tokens are masked in every evaluation
  for (const SampleRange& range : ranges_) {
    if (sample < range.count) return range.Append(sample, place, batch);
    sample -= range.count;
  }
  const auto rows = static_cast<size_t>(context_ * sequences_per_sample_);
  batch.tokens.insert(batch.tokens.end(), rows, 0);
  batch.labels.insert(batch.labels.end(), static_cast<size_t>(labels_per_sequence_ * sequences_per_sample_),
                      kNotCounted);
  if (has_documents_) batch.document_first.insert(batch.document_first.end(), rows, 0);
  if (!batch.types.empty()) batch.types.insert(batch.types.end(), rows, 0);
  return absl::OkStatus();
}

}  // namespace eps::server
