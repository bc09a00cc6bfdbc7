#ifndef EPS_GPU_WORKER_RELAY_GRADIENT_PUSHER_H_
#define EPS_GPU_WORKER_RELAY_GRADIENT_PUSHER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/group/group.h"
#include "gpu_worker/plan/relay_plan.h"
#include "gpu_worker/plan/schedule.h"
#include "gpu_worker/relay/arena_map.h"
#include "gpu_worker/relay/layer_runner.h"
#include "gpu_worker/relay/push_buffers.h"
#include "gpu_worker/relay/push_pieces.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

// Takes gradients from the arena to the transport: the kPush, kExchange and kPushPart steps of a pass.
//
// A push leaves in pieces of at most piece_bytes, each a range of chunks of one blob: it is handed to the transport
// when it is on the host, while the next, which has memory of its own, is copied. What fits one piece leaves as one,
// with a contribution for each blob. Its memory is taken in stream order, so that only gradients that are really under
// way hold any, and for all pieces at once.
//
// Threads: one caller; pushes leave from the device's out-stream
class GradientPusher {
 public:
  // All outlive the pusher. `flags`: host memory for those of the push under way, plan.num_vnodes of them.
  // is_awaited: PushBuffers'.
  GradientPusher(const ModelSpec& model, const RelayPlan& plan, Device& device, Transport& transport,
                 const ArenaMap& arena, absl::Span<int32_t> flags, int64_t piece_bytes,
                 std::function<bool()> is_awaited);

  // The out-stream is idle. is_last: of those that compute what a step was assigned.
  void BeginPass(bool is_last) { buffers_.BeginPass(is_last); }

  // `pass` and `group` must live until the out-stream is idle. Errors (in the stream): RESOURCE_EXHAUSTED the host has
  // no memory for the gradient, the group's and the device's. The transport tells its own to its `on_failure`.

  // Of a worker alone: one contribution for each of the layer's blobs that is not frozen.
  void EnqueuePush(const RelayStep& step, const PassContext& pass);
  // Of a group's member: one round in which it gives and gets gradients, and what the group has summed then, one
  // contribution for each subtree and for each piece of this member's part.
  void EnqueueExchange(const RelayStep& step, const PassContext& pass, Group& group);
  void EnqueuePushPart(const RelayStep& step, const PassContext& pass, Group& group);

  // The out-stream is idle; a push may have failed half-way. Returns when it waited for room (PushBuffers).
  std::vector<TimeSpan> EndPass() {
    leaving_ = {};
    return buffers_.TakeWaits();
  }

 private:
  // A gradient on its way out.
  struct Gradient {
    const std::byte* address = nullptr;  // on the device
    int64_t num_elems = 0;
    Dtype dtype = Dtype::kF32;
    TreeNode node;
    const std::byte* flags = nullptr;  // on the device: whether it is finite
    int num_flags = 0;
    int first_flag = 0;    // of the node's
    bool may_wait = true;  // for room: RelayStep's
    std::vector<PushedPart> parts;
  };
  // group: null: alone.
  void Enqueue(const Gradient& gradient, const PassContext& pass, Group* group);
  void Push(const PassContext& pass, const PushedPart& part, TreeNode node, Dtype dtype, int first_flag);

  // Fixed after construction.
  const ModelSpec& model_;
  const RelayPlan& plan_;
  Device& device_;
  Transport& transport_;
  const ArenaMap& arena_;
  const absl::Span<int32_t> flags_;
  const int64_t piece_bytes_;

  PushBuffers buffers_;
  PushMemory leaving_;  // of the push under way; the out-stream's
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_GRADIENT_PUSHER_H_
