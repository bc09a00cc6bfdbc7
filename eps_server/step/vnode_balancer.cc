#include "eps_server/step/vnode_balancer.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "common/base/median.h"
#include "common/schedule/chunk_range.h"

namespace eps::server {
namespace {

// What the slowest of them takes.
double LongestPass(absl::Span<const int> counts, absl::Span<const double> costs) {
  double longest = 0;
  for (size_t i = 0; i < counts.size(); ++i) longest = std::max(longest, counts[i] * costs[i]);
  return longest;
}

}  // namespace

std::vector<int> CountsByCost(int num_vnodes, absl::Span<const double> costs, int least) {
  const int num_workers = static_cast<int>(costs.size());
  std::vector<int> counts(costs.size(), num_vnodes >= num_workers * least ? least : 0);
  for (int left = num_vnodes - std::accumulate(counts.begin(), counts.end(), 0); left > 0; --left) {
    // One more for who is then done first. Nobody else's turn would end the whole earlier.
    size_t next = 0;
    for (size_t i = 1; i < costs.size(); ++i) {
      if ((counts[i] + 1) * costs[i] <= (counts[next] + 1) * costs[next]) next = i;
    }
    ++counts[next];
  }
  return counts;
}

const std::vector<int>& VnodeBalancer::BeginStep(absl::Span<const WorkerId> workers) {
  is_measured_ = true;
  pass_seconds_.clear();
  if (absl::MakeConstSpan(workers_) == workers) return counts_;
  // Who stays costs what it did, and who comes what they do in the mean.
  std::map<WorkerId, double> known;
  double sum = 0;
  for (size_t i = 0; i < costs_.size(); ++i) {
    if (std::find(workers.begin(), workers.end(), workers_[i]) == workers.end()) continue;
    known[workers_[i]] = costs_[i];
    sum += costs_[i];
  }
  std::vector<double> costs;
  for (const WorkerId worker : workers) {
    if (known.empty()) break;
    const auto of_worker = known.find(worker);
    costs.push_back(of_worker != known.end() ? of_worker->second : sum / static_cast<double>(known.size()));
  }
  workers_.assign(workers.begin(), workers.end());
  trial_.reset();
  windows_between_trials_ = 1;
  windows_to_wait_ = 0;
  Use(std::move(costs));
  BeginWindow();
  return counts_;
}

void VnodeBalancer::BeginWindow() {
  vnode_seconds_.assign(workers_.size(), {});
  step_seconds_.clear();
}

void VnodeBalancer::Use(std::vector<double> costs) {
  costs_ = std::move(costs);
  counts_ = costs_.empty() ? std::vector<int>() : CountsByCost(num_vnodes_, costs_, /*least=*/1);
}

std::vector<int> VnodeBalancer::Counts() const {
  if (!counts_.empty()) return counts_;
  std::vector<int> counts;
  const int size = static_cast<int>(workers_.size());
  for (int i = 0; i < size; ++i) counts.push_back(static_cast<int>(PartOf(num_vnodes_, i, size).count));
  return counts;
}

std::optional<VnodeBalancer::Decision> VnodeBalancer::EndStep(double seconds) {
  const bool is_balanced = workers_.size() > 1 && static_cast<int>(workers_.size()) < num_vnodes_;
  if (!std::exchange(is_measured_, false) || !is_balanced) return std::nullopt;
  const std::vector<int> counts = Counts();
  std::vector<double> vnode_seconds;
  for (size_t i = 0; i < workers_.size(); ++i) {
    const double pass_seconds = pass_seconds_[workers_[i]];
    if (pass_seconds <= 0) return std::nullopt;  // it did not say
    vnode_seconds.push_back(pass_seconds / counts[i]);
  }
  for (size_t i = 0; i < workers_.size(); ++i) vnode_seconds_[i].push_back(vnode_seconds[i]);
  step_seconds_.push_back(seconds);
  if (step_seconds_.size() < kWindow) return std::nullopt;

  Medians window{.step_seconds = Median(step_seconds_), .vnode_seconds = {}};
  for (const std::vector<double>& of_worker : vnode_seconds_) window.vnode_seconds.push_back(Median(of_worker));
  BeginWindow();
  if (trial_.has_value()) return JudgeTrial(window);
  if (windows_to_wait_ > 0) {
    --windows_to_wait_;
    return std::nullopt;
  }
  return LookForBetter(window);
}

VnodeBalancer::Decision VnodeBalancer::JudgeTrial(const Medians& window) {
  const Trial trial = *std::exchange(trial_, std::nullopt);
  if (window.step_seconds < trial.seconds_before) {
    windows_between_trials_ = 1;
    return Decide(Decision::Kind::kKept, window, trial.seconds_before);
  }
  Use(trial.costs_before);
  windows_to_wait_ = windows_between_trials_;
  windows_between_trials_ = std::min(2 * windows_between_trials_, kMostWindowsBetweenTrials);
  return Decide(Decision::Kind::kTakenBack, window, trial.seconds_before);
}

std::optional<VnodeBalancer::Decision> VnodeBalancer::LookForBetter(const Medians& window) {
  const std::vector<double>& costs = window.vnode_seconds;
  const double longest = LongestPass(Counts(), costs);
  const auto gain_of = [&](const std::vector<int>& counts) { return longest - LongestPass(counts, costs); };
  const double worthwhile = kWorthwhile * window.step_seconds;
  if (const double gain = gain_of(CountsByCost(num_vnodes_, costs, /*least=*/1)); gain >= worthwhile) {
    trial_ = Trial{.costs_before = costs_, .seconds_before = window.step_seconds};
    Use(costs);
    return Decide(Decision::Kind::kTried, window, window.step_seconds - gain);
  }
  const std::vector<int> without_slow = CountsByCost(num_vnodes_, costs, /*least=*/0);
  const double gain = gain_of(without_slow);
  if (gain < worthwhile) return std::nullopt;
  const auto slow = static_cast<size_t>(std::find(without_slow.begin(), without_slow.end(), 0) - without_slow.begin());
  if (slow == workers_.size() || !told_slow_.insert(workers_[slow]).second) return std::nullopt;
  Decision decision = Decide(Decision::Kind::kWorkerSlow, window, window.step_seconds - gain);
  decision.slow_worker = workers_[slow];
  return decision;
}

VnodeBalancer::Decision VnodeBalancer::Decide(Decision::Kind kind, const Medians& window, double other_seconds) const {
  Decision decision{.kind = kind, .workers = {}, .step_seconds = window.step_seconds, .other_seconds = other_seconds};
  const std::vector<int> counts = Counts();
  for (size_t i = 0; i < counts.size(); ++i) {
    decision.workers.push_back({workers_[i], counts[i], window.vnode_seconds[i]});
  }
  return decision;
}

}  // namespace eps::server
