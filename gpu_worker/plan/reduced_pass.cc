#include "gpu_worker/plan/reduced_pass.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>

#include "common/spec/run_config.h"

namespace eps::worker {
namespace {

constexpr int64_t kMostTurnsSimulated = 16'384;

}  // namespace

PassShape LargestPass(const PlanRequest& request, const PlanNeeds& needs) {
  const RunConfig& run = *request.run;
  PassShape pass = {.num_vnodes = needs.num_vnodes,
                    .micro_batches = run.batch.micro_batches,
                    .gradients = run.precision.gradients,
                    .expands = run.precision.wire != request.kernels.compute_dtype || request.model->has_quantized(),
                    .has_documents = run.data.has_documents()};
  pass.vnodes.resize(static_cast<size_t>(needs.max_pass_vnodes));
  std::iota(pass.vnodes.begin(), pass.vnodes.end(), 0);
  return pass;
}

int64_t ReducedPass::Scaled(int64_t count) const {
  constexpr double kRounding = 1e-9;  // of what divides evenly
  return static_cast<int64_t>(static_cast<double>(count) / scale + kRounding);
}

ReducedPass Reduce(const PassShape& pass, const RelayPlan& plan, const PlanNeeds& needs) {
  ReducedPass reduced{.pass = pass, .plan = plan};
  const int64_t most_items = std::max<int64_t>(1, kMostTurnsSimulated / (2 * needs.num_layers));
  const int64_t all_items = pass.items();
  if (all_items <= most_items) return reduced;
  reduced.pass.micro_batches = static_cast<int>(std::min<int64_t>(pass.micro_batches, most_items));
  reduced.pass.vnodes.resize(static_cast<size_t>(std::max<int64_t>(1, most_items / reduced.pass.micro_batches)));
  const int64_t items = reduced.pass.items();
  reduced.scale = static_cast<double>(all_items) / static_cast<double>(items);
  const auto slots = static_cast<int64_t>(plan.inner_slots.size());
  reduced.plan.inner = {.total = reduced.Scaled(plan.inner.total),
                        .kept = reduced.Scaled(plan.inner.kept),
                        .swapped = reduced.Scaled(plan.inner.swapped)};
  const int64_t spare = slots - plan.inner.kept;
  reduced.plan.inner_slots.resize(static_cast<size_t>(std::max<int64_t>(1, reduced.plan.inner.kept + spare)));
  // One for so many, as the gradients that these lie under stay whole.
  reduced.plan.leaving_inner_slots.clear();
  for (int64_t i = 0; i < reduced.Scaled(std::ssize(plan.leaving_inner_slots)); ++i) {
    const auto place = static_cast<size_t>(static_cast<double>(i) * reduced.scale);
    reduced.plan.leaving_inner_slots.push_back(plan.leaving_inner_slots[place]);
  }
  const int64_t boundaries = needs.backward_inputs() * items;
  const int64_t least = RelayPlan::LeastBoundarySlots(plan.depth_first_blocks);
  const int64_t staying = static_cast<int64_t>(plan.boundary_slots.size()) - least;
  reduced.plan.boundary_slots.resize(static_cast<size_t>(least + reduced.Scaled(staying)));
  reduced.plan.host_boundary_slots = boundaries;
  return reduced;
}

}  // namespace eps::worker
