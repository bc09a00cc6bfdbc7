#include "gpu_worker/plan/inner_search.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <utility>

#include "gpu_worker/plan/turns.h"

namespace eps::worker {
namespace {

int64_t Count(const std::vector<InnerPlace>& places, InnerPlace place) {
  return std::count(places.begin(), places.end(), place);
}

InnerCounts CountsOf(const std::vector<InnerPlace>& places) {
  return {.total = static_cast<int64_t>(places.size()),
          .kept = Count(places, InnerPlace::kKeep),
          .swapped = Count(places, InnerPlace::kSwap)};
}

std::vector<RelayStep> StepsWith(const InnerProblem& problem, const std::vector<InnerPlace>& places) {
  PassShape pass = problem.pass;
  pass.inner = places;
  RelayPlan plan = problem.plan;
  plan.inner = CountsOf(places);
  return BuildSchedule(*problem.model, plan, pass);
}

class Search {
 public:
  explicit Search(const InnerProblem& problem) : problem_(problem), total_(Total(problem)) {}

  InnerSolution Run() {
    switch (problem_.policy) {
      case InnerPolicy::kKeep:
        TryCounts({.total = total_, .kept = total_});
        break;
      case InnerPolicy::kSwap:
        TryCounts({.total = total_, .swapped = std::min(total_, problem_.most_swapped)});
        break;
      case InnerPolicy::kRecompute:
        TryCounts({.total = total_});
        break;
      case InnerPolicy::kAuto:
        TryAll();
        break;
    }
    best_.num_steps = num_steps_;
    return std::move(best_);
  }

 private:
  static int64_t Total(const InnerProblem& problem) {
    const Turns turns = TurnsOf(*problem.model, problem.plan, problem.pass);
    return int64_t{turns.num_stashed_blocks()} * turns.num_items();
  }

  void TryAll() {
    if (problem_.num_slots() >= total_ + problem_.plan.depth_first_blocks) {
      TryCounts({.total = total_, .kept = total_});
      return;
    }
    // Slots that nothing is kept in, beside those of blocks that are depth first: swaps need them where all others are
    // full, which is at the head.
    const int64_t slots = std::max<int64_t>(0, problem_.num_slots() - problem_.plan.depth_first_blocks);
    const int64_t items = problem_.pass.items();
    for (const int64_t spare : {int64_t{0}, slots % items, int64_t{1}, int64_t{2}, int64_t{4}, slots / 2, slots}) {
      if (spare > slots || tried_spare_[spare]++ > 0) continue;
      TrySwapped(slots - spare);
    }
    if (total_ <= kMostPlacesOneByOne) Improve();
    if (total_ <= kMostPlacesOfAll) TryEach();
  }
  void TryEach() {
    std::vector<InnerPlace> places(static_cast<size_t>(total_), InnerPlace::kRecompute);
    do {
      Try(places);
    } while (NextPlaces(places));
  }

  // How many of those that are not kept are swapped: five to begin with, then nearer and nearer to the best.
  void TrySwapped(int64_t kept) {
    const int64_t most = std::min(total_ - kept, problem_.most_swapped);
    int64_t stride = std::max<int64_t>(1, most / 4);
    int64_t center = -1;
    double center_seconds = std::numeric_limits<double>::infinity();
    const auto visit = [&](int64_t swapped) {
      if (swapped < 0 || swapped > most) return;
      const double seconds = TryCounts({.total = total_, .kept = kept, .swapped = swapped});
      if (seconds < center_seconds) center = swapped, center_seconds = seconds;
    };
    for (int64_t swapped = 0; swapped < most; swapped += stride) visit(swapped);
    visit(most);
    while (stride > 1 && stride > most / 64) {
      stride = (stride + 1) / 2;
      const int64_t around = center;
      visit(around - stride);
      visit(around + stride);
      if (stride == 1) break;
    }
  }

  double TryCounts(const InnerCounts& counts) { return Try(SpreadInner(counts, total_)); }
  double Try(std::vector<InnerPlace> places) {
    const auto known = tried_.find(places);
    if (known != tried_.end()) return known->second;
    const bool may_try = tried_.empty() || num_steps_ <= problem_.most_steps;
    if (!may_try || !IsFeasible(problem_, places)) return std::numeric_limits<double>::infinity();
    const std::vector<RelayStep> steps = StepsWith(problem_, places);
    num_steps_ += std::ssize(steps);
    const double seconds = Simulate(*problem_.model, steps, *problem_.costs).step_seconds;
    tried_.emplace(places, seconds);
    if (seconds < best_.step_seconds) {
      const InnerCounts counts = CountsOf(places);
      best_ = {.places = std::move(places), .counts = counts, .step_seconds = seconds};
    }
    return seconds;
  }

  // Changes one place, or exchanges two, as long as that helps.
  void Improve() {
    double before = std::numeric_limits<double>::infinity();
    while (best_.step_seconds < before) {
      before = best_.step_seconds;
      const std::vector<InnerPlace> from = best_.places;
      for (size_t i = 0; i < from.size(); ++i) {
        for (const InnerPlace place : {InnerPlace::kRecompute, InnerPlace::kKeep, InnerPlace::kSwap}) {
          std::vector<InnerPlace> changed = from;
          changed[i] = place;
          Try(std::move(changed));
        }
        for (size_t j = i + 1; j < from.size(); ++j) {
          std::vector<InnerPlace> changed = from;
          std::swap(changed[i], changed[j]);
          Try(std::move(changed));
        }
      }
    }
  }

  const InnerProblem& problem_;
  const int64_t total_;
  std::map<int64_t, int> tried_spare_;
  std::map<std::vector<InnerPlace>, double> tried_;
  int64_t num_steps_ = 0;
  InnerSolution best_ = {.step_seconds = std::numeric_limits<double>::infinity()};
};

}  // namespace

bool NextPlaces(std::vector<InnerPlace>& places) {
  for (InnerPlace& place : places) {
    if (place != InnerPlace::kSwap) {
      place = place == InnerPlace::kRecompute ? InnerPlace::kKeep : InnerPlace::kSwap;
      return true;
    }
    place = InnerPlace::kRecompute;
  }
  return false;
}

bool IsFeasible(const InnerProblem& problem, const std::vector<InnerPlace>& places) {
  return Count(places, InnerPlace::kSwap) <= problem.most_swapped &&
         InnerFits(places, problem.pass.items(), problem.num_slots(), problem.plan.depth_first_blocks);
}

double StepSecondsWith(const InnerProblem& problem, const std::vector<InnerPlace>& places) {
  return Simulate(*problem.model, StepsWith(problem, places), *problem.costs).step_seconds;
}

InnerSolution SearchInner(const InnerProblem& problem) { return Search(problem).Run(); }

}  // namespace eps::worker
