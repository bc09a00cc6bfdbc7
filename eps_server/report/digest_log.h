#ifndef EPS_SERVER_REPORT_DIGEST_LOG_H_
#define EPS_SERVER_REPORT_DIGEST_LOG_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/model/model_spec.h"
#include "eps_server/optimizer/chunk_witness.h"
#include "eps_server/step/step_report.h"
#include "eps_server/store/store.h"

namespace eps::server {

// What two runs are compared by: a line of JSON per committed step, with its loss and, for each tensor, a digest of the
// step's summed gradient and one of the fp32 master after the update (docs/formats.md).
//
// A tensor's digest is that of the digests of its parts, one per chunk that it has elements in: parts are digested where
// and when they are made, by the optimizer's threads, and the result does not depend on them. Padding is left out.
//
// A frozen tensor has no gradient: its digest is that of none. Its master is read again for each step, so that one that
// changed shows.
//
// Cost: one more pass over each chunk's sum and its master, which are in the cache then.
// Threads: as ChunkWitness and StepObserver
class DigestLog final : public ChunkWitness, public StepObserver {
 public:
  // Begins `path` anew. `model` and `store` outlive the log. Errors: the system's, naming the file
  static absl::StatusOr<std::unique_ptr<DigestLog>> Open(const std::string& path, const ModelSpec* model,
                                                         const Store* store);

  void OnSummed(StepId step, BlobId blob, int64_t chunk, absl::Span<const float> sum) override;
  void OnUpdated(StepId step, BlobId blob, int64_t chunk) override;
  void OnCommit(const StepReport& report) override;

  // The first line that could not be written. A run that goes on without its digests would be taken for a shorter one.
  absl::Status status() const;

 private:
  // A tensor's elements within a chunk.
  struct Part {
    int64_t begin = 0, end = 0;  // elements of the chunk
    size_t index = 0;            // of all parts of the model, tensor by tensor
  };
  struct StepDigests {
    std::vector<uint64_t> gradients, masters;  // by Part::index; each is written once, by one thread
  };

  DigestLog(std::string path, FileDescriptor file, const ModelSpec* model, const Store* store);
  StepDigests& Of(StepId step);
  void Digest(absl::Span<const float> chunk_values, const std::vector<Part>& parts,
              std::vector<uint64_t>& digests) const;
  std::string Line(const StepReport& report, const StepDigests& digests) const;

  // Fixed after construction.
  const std::string path_;
  const FileDescriptor file_;
  const ModelSpec& model_;
  const Store& store_;
  std::vector<std::vector<std::vector<Part>>> parts_;  // by blob and chunk
  std::vector<size_t> first_part_;                     // by tensor, in the order of blobs; one more at the end

  mutable Mutex mu_;
  std::map<StepId, std::unique_ptr<StepDigests>> steps_ ABSL_GUARDED_BY(mu_);  // not committed
  int64_t num_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_DIGEST_LOG_H_
