#include "gpu_worker/profile/worth_measuring.h"

#include <optional>

#include "gpu_worker/plan/relay_step.h"
#include "gpu_worker/plan/step_costs.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::worker {
namespace {

constexpr double kTimesAsLong = 100;
constexpr double kFixedSeconds = 15;  // libraries, copies, updates: with small layers 9 to 12 on an H200 (27 Nov 2026)
constexpr double kVisitsOfEachKind = 40;  // MeasureProfile's: five rounds, alone and beside other work

}  // namespace

bool IsWorthMeasuring(const Profile& profile, const ModelSpec& model, const RunConfig& run, const KernelSizes& kernels,
                      int workers) {
  if (HasExactTimes(profile, model, run, kernels)) return false;
  const StepCosts costs = CostsOf(profile, model, run, kernels, LinkOf(profile.device, run.transport));
  double all_layers = 0, each_kind = 0;  // one micro-batch there and back
  std::optional<LayerKind> last;         // layers of a kind follow each other
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
  const double run_seconds = static_cast<double>(run.steps) * items * all_layers / workers;
  return run_seconds > kTimesAsLong * (kFixedSeconds + kVisitsOfEachKind * each_kind);
}

}  // namespace eps::worker
