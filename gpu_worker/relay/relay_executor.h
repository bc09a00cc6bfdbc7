#ifndef EPS_GPU_WORKER_RELAY_RELAY_EXECUTOR_H_
#define EPS_GPU_WORKER_RELAY_RELAY_EXECUTOR_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"
#include "common/telemetry/trace_log.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/forward_witness.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Of an assignment, all of its passes.
struct PassResult {
  std::vector<VnodeRecord> records;  // one per vnode
  double seconds = 0;
  std::array<double, kNumWaitCauses> compute_wait_seconds = {};
};

// Carries a RelayPlan out: the forward and backward relay of a set of vnodes through every layer.
// Decides nothing: sizes and places come from the plan, order from BuildSchedule.
//
// Where the transport has weights in memory that the device can read (a cpu, shared memory), kernels read them there
// and a pull is a wait; the slots of the plan are not used then.
//
// Threads: one caller. Pulls run on the device's in-stream, pushes leave from its out-stream.
class RelayExecutor {
 public:
  // On a link of 50 GB/s this takes 0.7 ms, of which what a piece costs by itself, a wait for the copy's end and a
  // message, is a few per cent; and of the tied embedding of a large model, 200 MB, five sixths are with the daemon
  // when the last piece arrives.
  static constexpr int64_t kPushPieceBytes = int64_t{32} << 20;

  struct Options {
    const ModelSpec* model = nullptr;  // these four outlive the executor
    const RunConfig* run = nullptr;
    Device* device = nullptr;
    Transport* transport = nullptr;
    RelayPlan plan;
    ForwardWitness* witness = nullptr;           // of passes that train; outlives the executor; null: none
    AlterSchedule alter_schedule = nullptr;      // of every pass; of a test's program alone
    int64_t push_piece_bytes = kPushPieceBytes;  // other ones for tests alone; a piece has a whole chunk at least
    TraceLog* trace = nullptr;                   // outlives the executor; null: none
    // Whether an order waits for the one that runs to be done; null: never. Asked by any thread.
    std::function<bool()> is_awaited = nullptr;
  };
  // Errors: RESOURCE_EXHAUSTED the plan needs a larger arena, or the host has no memory for what passes keep there
  static absl::StatusOr<std::unique_ptr<RelayExecutor>> Create(Options options);
  virtual ~RelayExecutor() = default;

  // Runs the assignment's vnodes, in passes of plan.max_pass_vnodes, with version `assignment.step` of every
  // blob, and hands every contribution to the transport. Returns when compute is done; contributions may
  // still be on their way (Transport::Flush). Of an evaluation's round: forward alone, without dropout, and nothing is
  // handed to the transport.
  // group: the one that the assignment names, whose other members run theirs now; null where it names none.
  // Errors: INVALID_ARGUMENT an assignment that does not fit the run, or its group · RESOURCE_EXHAUSTED the host has no
  //         memory for weights that are pulled or gradients that leave · the transport's, the group's or the device's
  //         first one, with step, layer and direction in front. The executor can be used again afterwards; of a pass
  //         whose group has ended, parts were pushed and parts were not.
  virtual absl::StatusOr<PassResult> Run(const Assignment& assignment, Group* group) = 0;
  absl::StatusOr<PassResult> Run(const Assignment& assignment) { return Run(assignment, nullptr); }

  // Calls every kernel of a pass over one micro-batch on `kernels`, Device::survey()'s, at places in the arena.
  virtual void Survey(Kernels& kernels) = 0;

  // Forward only, with `version` of every blob: the logits (vocab) after the last of `tokens`
  // (1 .. context of them), or a classifier's (classes). No dropout.
  // Errors: INVALID_ARGUMENT too few or many tokens, or an id beyond the vocabulary · else as Run's
  virtual absl::StatusOr<std::vector<float>> NextTokenLogits(Version version, absl::Span<const int32_t> tokens) = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_RELAY_EXECUTOR_H_
