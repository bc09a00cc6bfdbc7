#ifndef EPS_COMMON_SAMPLES_SAMPLE_SOURCE_H_
#define EPS_COMMON_SAMPLES_SAMPLE_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"

namespace eps {

// A run's data as numbered samples of model.context tokens each, whatever the files' form, with the labels that its
// objective takes: the tokens behind, the tokens themselves where they may be masked (MaskTokens does it), or a class.
//
// Threads: safe; fixed after construction.
class SampleSource {
 public:
  // Opens the files; `CheckIds` is left to the caller.
  // Errors: NOT_FOUND no such file · INVALID_ARGUMENT naming data's field, the file, and what it has and lacks: tokens,
  //         the index of its documents, a document with something to predict
  static absl::StatusOr<std::unique_ptr<SampleSource>> Open(const RunConfig& run);
  virtual ~SampleSource() = default;

  virtual int64_t num_samples() const = 0;  // at least 1
  // Behind what the batch's arrays have. Errors: as TokenFile::Read
  virtual absl::Status Append(int64_t sample, VnodeBatch& batch) const = 0;
  // That every id is below the vocabulary; reads all files where one may not be. Errors: as TokenFile::Read
  virtual absl::Status CheckIds() const = 0;
  // Whose content the samples depend on.
  virtual std::vector<std::string> files() const = 0;
};

}  // namespace eps

#endif  // EPS_COMMON_SAMPLES_SAMPLE_SOURCE_H_
