#include "gpu_worker/telemetry/forward_log.h"

#include <fcntl.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/numeric/bit_digest.h"

namespace eps::worker {

absl::StatusOr<std::unique_ptr<ForwardLog>> ForwardLog::Open(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_WRONLY | O_CREAT | O_TRUNC));
  return std::unique_ptr<ForwardLog>(new ForwardLog(path, std::move(file)));
}

void ForwardLog::OnForward(StepId step, LayerId layer, int vnode, int micro_batch, absl::Span<const std::byte> output) {
  const std::string line = absl::StrCat("{\"step\":", step.value(), ",\"layer\":", layer.value(), ",\"vnode\":", vnode,
                                        ",\"micro_batch\":", micro_batch, ",\"output\":\"",
                                        absl::Hex(DigestBytes(output), absl::kZeroPad16), "\"}\n");
  MutexLock lock(mu_);
  const absl::Status status = WriteAt(file_, path_, num_bytes_, line);
  if (status.ok()) {
    num_bytes_ += static_cast<int64_t>(line.size());
  } else if (!std::exchange(failed_, true)) {
    LogWarning("digests_not_written", {{"error", status.ToString()}});
  }
}

}  // namespace eps::worker
