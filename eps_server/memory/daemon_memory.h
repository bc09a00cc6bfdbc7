#ifndef EPS_SERVER_MEMORY_DAEMON_MEMORY_H_
#define EPS_SERVER_MEMORY_DAEMON_MEMORY_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "common/spec/moment_format.h"
#include "common/spec/run_config.h"
#include "eps_server/store/store.h"

namespace eps::server {

// What the daemon holds beside the model's state and gradients: its code and libraries, gRPC's buffers, threads, the
// token file's mapped pages in use. Measured at 30 to 60 MiB; the test of the daemon's resident memory holds it to this.
inline constexpr int64_t kDaemonConstantBytes = int64_t{96} << 20;

// While a checkpoint is written, beside what is copied of the state: a part of a file that is read back, lists of what is
// written, and the manifest, whose text, document and copy take this much for each step's loss and norm.
inline constexpr int64_t kCheckpointBufferBytes = int64_t{2} << 20;
inline constexpr int64_t kManifestBytesPerStep = 256;

// Every byte of the daemon's memory, by kind: arithmetic alone, nothing is allocated.
struct DaemonMemory {
  StoreSizes store;
  MomentFormat moments = MomentFormat::kFp32;
  int wire_versions = 2;
  bool defers_updates = false;                   // RunConfig's
  std::optional<QuantizedFormat> frozen_format;  // ModelConfig's
  int64_t contribution_window_bytes = 0;         // gradients in flight, at most
  int64_t hold_bytes = 0;                        // sums held until the step's norm is known: EXACT clipping, FP16
  int64_t capture_bytes = 0;      // for what is copied for a checkpoint and not yet written; kept all the time
  int64_t capture_all_bytes = 0;  // what a checkpoint copies in all
  int64_t checkpoint_bytes = 0;   // the rest of what writing one takes
  int64_t constant_bytes = kDaemonConstantBytes;

  int64_t model_state_bytes() const { return store.total_bytes(); }
  // What the run has no way around; the rest are bounds, which a run need not reach.
  int64_t surely_written_bytes() const { return model_state_bytes() + hold_bytes; }
  int64_t total_bytes() const {
    return model_state_bytes() + contribution_window_bytes + hold_bytes + capture_bytes + checkpoint_bytes +
           constant_bytes;
  }
};
// workers: whose gradients come
DaemonMemory ComputeDaemonMemory(const ModelSpec& model, const RunConfig& run, int workers = 1);

struct DaemonMemoryLine {
  std::string what;
  int64_t num_bytes = 0;
  std::string why;
};
std::vector<DaemonMemoryLine> Describe(const DaemonMemory& memory);

}  // namespace eps::server

#endif  // EPS_SERVER_MEMORY_DAEMON_MEMORY_H_
