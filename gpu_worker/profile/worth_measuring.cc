#include "gpu_worker/profile/worth_measuring.h"

#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/step_costs.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::worker {
namespace {

constexpr double kTimesAsLong = 100;
// A GPU's libraries are loaded, each kind of layer goes there and back so often, and figures that do not depend on it take
// the rest. Seen on an H200: 9 to 12 s.
constexpr double kMeasuringSeconds = 15;
constexpr double kVisits = 40;

}  // namespace

bool IsWorthMeasuring(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels,
                      int64_t steps, int workers) {
  if (HasExactTimes(profile, model, run, kernels)) return false;
  const StepCosts costs = CostsOf(profile, model, run, kernels, LinkOf(profile.device, run.transport));
  double all_layers = 0, each_kind = 0;  // one micro-batch there and back
  LayerKind last = LayerKind::kHead;     // layers of a kind follow each other, and the head is not the first
  for (const LayerSpec& layer : model.layers) {
    const bool is_head = layer.kind == LayerKind::kHead;
    const double there = is_head ? 0 : costs.seconds({.kind = RelayStep::Kind::kForward, .layer = layer.id});
    const double back =
        costs.seconds({.kind = is_head ? RelayStep::Kind::kHead : RelayStep::Kind::kBackward, .layer = layer.id});
    all_layers += there + back;
    if (layer.kind != last) each_kind += there + back;
    last = layer.kind;
  }
  const auto items = static_cast<double>(int64_t{run.batch.virtual_nodes} * run.batch.micro_batches);
  const double run_seconds = static_cast<double>(steps) * items * all_layers / workers;
  return run_seconds > kTimesAsLong * (kMeasuringSeconds + kVisits * each_kind);
}

}  // namespace eps::worker
