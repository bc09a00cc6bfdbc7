#ifndef EPS_GPU_WORKER_PLAN_PROFILE_H_
#define EPS_GPU_WORKER_PLAN_PROFILE_H_

#include <array>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/model_spec.h"
#include "gpu_worker/layers/layer_shape.h"

namespace eps::worker {

// What runs at once in a step: a worker's three streams, and the daemon's updates.
enum class Activity { kCompute, kIn, kOut, kUpdate };
inline constexpr int kNumActivities = 4;
absl::string_view ActivityName(Activity activity);  // "compute", "in", "out", "update"

// [a][b]: the speed of a while b runs as well, as a part of its speed alone. 1 where they share nothing, 0.5 where one
// thing is divided between the two.
using Sharing = std::array<std::array<double, kNumActivities>, kNumActivities>;
inline constexpr Sharing kNothingShared = {{{1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}}};

// One kind of layer over one micro-batch, on the device alone. Of what a layer has not: 0.
struct LayerTimes {
  LayerKind kind = LayerKind::kBlock;
  LayerShape shape;
  double forward_seconds = 0;
  double recompute_seconds = 0;
  double backward_seconds = 0;  // the head's: its whole visit
  double expand_seconds = 0;    // weights to the compute dtype
};

// Of an ordinary solid-state disk on four lanes, while it reads and writes.
inline constexpr double kNominalDiskBytesPerSecond = 2e9;

// What a plan's time is computed from: measured once on a machine (`eps profile`), or nominal. Plain data.
struct Profile {
  std::string hardware;  // for people: the device's model, the host's processor
  std::string device;    // "cpu", "cuda:0"
  int threads = 1;       // that computed
  std::string measured;  // the date, of what was measured last; or "nominal"

  std::vector<LayerTimes> layers;        // of several runs, the newest first
  double gradient_bytes_per_second = 0;  // zeroing, adding, finishing gradients: bytes read and written
  double in_bytes_per_second = 0;        // host to arena, alone
  double out_bytes_per_second = 0;       // arena to host, alone
  double update_bytes_per_second = 0;    // of the daemon's optimizer: bytes read and written
  double network_bytes_per_second = 0;   // each way, where weights and gradients travel over gRPC
  double disk_bytes_per_second = kNominalDiskBytesPerSecond;  // optimizer_offload's, read and written, in all
  double handover_seconds = 0;                                // until a stream that waits for another's work goes on
  double between_steps_seconds = 0;                           // in which the daemon has the word
  Sharing sharing = kNothingShared;
};

inline constexpr std::array<LayerKind, 3> kLayerKinds = {LayerKind::kEmbedding, LayerKind::kBlock, LayerKind::kHead};
absl::string_view LayerKindName(LayerKind kind);  // "embedding", "block", "head"

// Figures of an ordinary machine of its kind, for plans before anything was measured: they rank choices, and predict
// nothing. device: "cpu", "cuda", "cuda:I".
Profile NominalProfile(const std::string& device);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_PROFILE_H_
