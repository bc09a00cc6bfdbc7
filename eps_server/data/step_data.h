#ifndef EPS_SERVER_DATA_STEP_DATA_H_
#define EPS_SERVER_DATA_STEP_DATA_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/base/long_work.h"
#include "common/samples/sample_source.h"
#include "common/schedule/sample_order.h"
#include "common/schedule/source_mix.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"

namespace eps::server {

// Samples of a source that follow each other.
struct SampleRange {
  std::shared_ptr<const SampleSource> source;
  int64_t first = 0;
  int64_t count = 0;
  // The run's samples have documents: each of a source without any is one.
  bool has_documents = false;

  // The index-th of them, below count; place: SampleSource::Append's. Errors: SampleSource::Append's
  absl::Status Append(int64_t index, int64_t place, VnodeBatch& batch) const;
};

// The tokens of each step: which sample of which source goes to which vnode is a function of the run and the step
// alone.
//
// Threads: safe; fixed after construction.
class StepData {
 public:
  // Opens the run's files and checks them whole: at least one sample, or two where one is held out, and every id below the
  // vocabulary (read once where an id can be too large, of which `work` is told; null: nobody is).
  // Errors: SampleSource::Open's and CheckIds' · INVALID_ARGUMENT naming evaluation.held_out, or data.uncounted where no
  // token at all is counted
  static absl::StatusOr<std::unique_ptr<StepData>> Create(const RunConfig& run, LongWork* work = nullptr);

  // The batches of `step`, one per vnode, by rising vnode.
  absl::StatusOr<std::vector<VnodeBatch>> Read(StepId step) const;

  int64_t num_samples() const;  // that are trained on
  // Those that are not, by source: the last ones of each, by evaluation.held_out.
  std::vector<SampleRange> held_out() const;
  // Whose content the samples depend on.
  std::vector<std::string> files() const;

 private:
  struct Source {
    SampleRange trained, held_out;
    SampleOrder order;            // of those that are trained on
    bool counts_nothing = false;  // the loss: whatever is read of it
  };
  StepData(const RunConfig& run, std::vector<Source> sources);
  static absl::StatusOr<Source> Open(const RunConfig& run, size_t index, LongWork* work);

  const BatchConfig batch_;
  const int sequences_per_sample_;
  const std::vector<Source> sources_;
  const SourceMix mix_;
};

// What the loss is a mean over: labels that are counted, i.e. other than -100, or pairs.
int64_t CountedTokens(const VnodeBatch& batch);

}  // namespace eps::server

#endif  // EPS_SERVER_DATA_STEP_DATA_H_
