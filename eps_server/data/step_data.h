#ifndef EPS_SERVER_DATA_STEP_DATA_H_
#define EPS_SERVER_DATA_STEP_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/samples/sample_source.h"
#include "common/schedule/sample_order.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"

namespace eps::server {

// The tokens of each step: which sample goes to which vnode is a function of the run and the step
// alone.
//
// Threads: safe; fixed after construction.
class StepData {
 public:
  // Opens the run's files and checks them whole: at least one sample, and every id below the
  // vocabulary (read once where an id can be too large).
  // Errors: SampleSource::Open's and CheckIds'
  static absl::StatusOr<std::unique_ptr<StepData>> Create(const RunConfig& run);

  // The batches of `step`, one per vnode, by rising vnode.
  absl::StatusOr<std::vector<VnodeBatch>> Read(StepId step) const;

  int64_t num_samples() const { return source_->num_samples(); }
  // Whose content the samples depend on.
  std::vector<std::string> files() const { return source_->files(); }

 private:
  StepData(const RunConfig& run, std::unique_ptr<SampleSource> source);

  const RunConfig run_;
  const std::unique_ptr<SampleSource> source_;
  const SampleOrder order_;
};

// Labels that are counted, i.e. other than -100.
int64_t CountedTokens(const VnodeBatch& batch);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_STEP_DATA_H_
