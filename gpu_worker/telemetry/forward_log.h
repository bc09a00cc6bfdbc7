#ifndef EPS_GPU_WORKER_TELEMETRY_FORWARD_LOG_H_
#define EPS_GPU_WORKER_TELEMETRY_FORWARD_LOG_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "common/base/mutex.h"
#include "gpu_worker/relay/forward_witness.h"

namespace eps::worker {

// A line of JSON per layer, vnode and micro-batch of a forward relay: a digest of the layer's output, by which two runs
// are compared where they begin to differ on the way there (docs/formats.md).
//
// Threads: as ForwardWitness
class ForwardLog final : public ForwardWitness {
 public:
  // Begins `path` anew. Errors: the system's, naming the file
  static absl::StatusOr<std::unique_ptr<ForwardLog>> Open(const std::string& path);

  // What cannot be written is said once in the log: a comparison then knows less, and no more.
  void OnForward(StepId step, LayerId layer, int vnode, int micro_batch, absl::Span<const std::byte> output) override;

 private:
  ForwardLog(std::string path, FileDescriptor file) : path_(std::move(path)), file_(std::move(file)) {}

  const std::string path_;
  const FileDescriptor file_;
  Mutex mu_;
  int64_t num_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  bool failed_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TELEMETRY_FORWARD_LOG_H_
