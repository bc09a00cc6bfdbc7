// The planner: how far its search is from trying everything, on random small instances, and how long a plan of a deep model
// takes. The first compares predictions of one simulator, so it does not depend on the machine.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "CLI/CLI.hpp"
#include "bench/support.h"
#include "common/base/median.h"
#include "common/base/parallel_for.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "gpu_worker/device/cpu/cpu_kernel_sizes.h"
#include "gpu_worker/plan/inner_search.h"
#include "gpu_worker/plan/planner.h"
#include "gpu_worker/plan/profile.h"
#include "gpu_worker/plan/search_instances.h"
#include "nlohmann/json.hpp"

namespace eps::worker {
namespace {

using Clock = std::chrono::steady_clock;

struct Settings {
  int64_t instances = 500, places = 9;  // of an instance, at most
  int64_t layers = 400;
};

// What the search finds, as a part above the best of all.
double GapOf(uint64_t seed, int64_t most_places) {
  const SearchInstance instance(seed, most_places);
  const InnerSolution found = SearchInner(instance.problem);
  return found.step_seconds / BestOfAll(instance.problem, found.places.size()).step_seconds - 1;
}

nlohmann::ordered_json MeasureGap(const Settings& settings) {
  std::vector<double> gaps(static_cast<size_t>(settings.instances));
  ParallelFor(
      gaps.size(), [&](size_t i) { gaps[i] = GapOf(i, settings.places); },
      [&](size_t done) {
        if (done % 20 == 0) std::fprintf(stderr, "%zu of %zu instances\n", done, gaps.size());
      });
  const auto exact = std::count_if(gaps.begin(), gaps.end(), [](double gap) { return gap < 1e-9; });
  const auto beyond = std::count_if(gaps.begin(), gaps.end(), [](double gap) { return gap > 0.02; });
  const double worst = *std::max_element(gaps.begin(), gaps.end()), median = Median(gaps);
  std::printf(
      "search: %lld instances of up to %lld places: median %.4f%% above the best of all, worst %.2f%%, %lld exact, "
      "%lld beyond 2%%\n",
      static_cast<long long>(settings.instances), static_cast<long long>(settings.places), 100 * median, 100 * worst,
      static_cast<long long>(exact), static_cast<long long>(beyond));
  return {{"instances", settings.instances},
          {"places", settings.places},
          {"median_gap", median},
          {"worst_gap", worst},
          {"exact", exact},
          {"beyond_2_percent", beyond}};
}

// Of a model of GPT-2's width, a third of the way from the smallest cap to everything resident.
nlohmann::ordered_json TimePlan(const Settings& settings, int micro_batches) {
  RunConfig run;
  run.model = {.num_layers = settings.layers, .d_model = 768, .num_heads = 12, .context = 256, .vocab = 50257};
  run.batch = {.virtual_nodes = 4, .micro_batches = micro_batches, .micro_batch = 2};
  run.steps = 1;
  const ModelSpec model = BuildModel(run.model).value();
  const Profile profile = NominalProfile("cpu");
  PlanRequest request{.model = &model,
                      .run = &run,
                      .kernels = CpuKernelSizes(),
                      .host_stash_bytes = int64_t{1} << 50,
                      .profile = &profile};
  const int64_t smallest = SmallestCapBytes(request), most = MakeRelayPlan(request)->arena_bytes;
  request.cap_bytes = smallest + (most - smallest) / 3;
  const Clock::time_point begin = Clock::now();
  const RelayPlan plan = MakeRelayPlan(request).value();
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  const double used = static_cast<double>(plan.arena_bytes) / static_cast<double>(request.cap_bytes);
  std::printf(
      "plan: %lld layers, %d micro-batches: %.2f s; %lld kept, %lld swapped, %lld recomputed; %.3f of the cap\n",
      static_cast<long long>(settings.layers), 4 * micro_batches, seconds, static_cast<long long>(plan.inner.kept),
      static_cast<long long>(plan.inner.swapped), static_cast<long long>(plan.inner.recomputed()), used);
  return {{"layers", settings.layers}, {"micro_batches", 4 * micro_batches}, {"seconds", seconds}, {"of_cap", used}};
}

}  // namespace
}  // namespace eps::worker

int main(int argc, char** argv) {
  CLI::App app("The planner's search against trying everything, and its time for a deep model.");
  eps::worker::Settings settings;
  app.add_option("--instances", settings.instances, "Random small instances")
      ->capture_default_str()
      ->check(CLI::Range(1, 1000000));
  app.add_option("--places", settings.places, "Three-way choices of an instance, at most; 12 take an hour of a core")
      ->capture_default_str()
      ->check(CLI::Range(2, 12));
  app.add_option("--layers", settings.layers, "Of the deep model")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  nlohmann::ordered_json json = {{"name", "plan"}, {"search", eps::worker::MeasureGap(settings)}};
  for (const int micro_batches : {1, 4, 16}) json["plan"].push_back(eps::worker::TimePlan(settings, micro_batches));
  std::printf("%s\n", json.dump().c_str());
  return 0;
}
