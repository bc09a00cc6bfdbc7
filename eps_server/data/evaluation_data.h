#ifndef EPS_SERVER_DATA_EVALUATION_DATA_H_
#define EPS_SERVER_DATA_EVALUATION_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/samples/sample_source.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "eps_server/data/corpus_tokens.h"
#include "eps_server/data/step_data.h"

namespace eps {
class LongWork;
}  // namespace eps

namespace eps::server {

// The samples of an evaluation, cut into rounds of as many as a step has; the last one is filled up with samples of which
// nothing is counted.
//
// Threads: safe; fixed after construction.
class EvaluationData {
 public:
  // Of the run's evaluation.path, which is made into tokens in `folder` where it needs that, by `threads`, of which
  // `work` is told; or of what `training` keeps back, which only then is looked at, and is null else.
  // Errors: WithTokenFile's, CheckClassesOfEvaluation's, SampleSource::Open's and CheckIds'
  static absl::StatusOr<std::unique_ptr<EvaluationData>> Open(const RunConfig& run, const StepData* training,
                                                              const std::string& folder, int threads,
                                                              FormerTokens former = FormerTokens::kReplaced,
                                                              LongWork* work = nullptr);
  // Of `ranges`, one behind the other; with fewer than all (run.evaluation.samples), each gives its share, its first ones.
  EvaluationData(const RunConfig& run, std::vector<SampleRange> ranges);

  int64_t num_samples() const { return num_samples_; }  // at least 1
  int64_t num_rounds() const;

  // One batch per vnode, by rising vnode. Errors: SampleSource::Append's, naming round and vnode
  absl::StatusOr<std::vector<VnodeBatch>> Read(int64_t round) const;

 private:
  absl::Status Append(int64_t sample, VnodeBatch& batch) const;

  const BatchConfig batch_;
  const int64_t context_, labels_per_sequence_;
  const int sequences_per_sample_;
  const bool has_documents_;
  std::vector<SampleRange> ranges_;  // none is empty
  int64_t num_samples_ = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_EVALUATION_DATA_H_
