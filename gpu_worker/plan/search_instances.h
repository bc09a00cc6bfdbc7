#ifndef EPS_GPU_WORKER_PLAN_SEARCH_INSTANCES_H_
#define EPS_GPU_WORKER_PLAN_SEARCH_INSTANCES_H_

#include <cstddef>
#include <cstdint>

#include "common/model/model_spec.h"
#include "gpu_worker/plan/inner_search.h"
#include "gpu_worker/plan/timeline.h"

namespace eps::worker {

// A machine and a model, drawn from a seed: products, links and updates of speeds that differ by what machines differ
// by; at most `most_places` inner activations of blocks and micro-batches. For tests and benchmarks of the search.
struct SearchInstance {
  SearchInstance(uint64_t seed, int64_t most_places);
  SearchInstance(const SearchInstance&) = delete;

  ModelSpec model;
  StepCosts costs;
  InnerProblem problem;  // of these two
};

// Tries all: 3 to the power of num_places.
InnerSolution BestOfAll(const InnerProblem& problem, size_t num_places);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PLAN_SEARCH_INSTANCES_H_
