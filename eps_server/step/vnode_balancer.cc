#include "eps_server/step/vnode_balancer.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <queue>
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
  // When each would be done with one more. It goes to who is done first: nobody else's turn would end the whole
  // earlier.
  struct Next {
    double done = 0;
    size_t worker = 0;
    bool operator<(const Next& other) const {
      return done > other.done || (done == other.done && worker < other.worker);
    }
  };
  std::priority_queue<Next> nexts;
  for (size_t i = 0; i < costs.size(); ++i) nexts.push({(counts[i] + 1) * costs[i], i});
  for (int left = num_vnodes - std::accumulate(counts.begin(), counts.end(), 0); left > 0; --left) {
    const size_t i = nexts.top().worker;
    nexts.pop();
    ++counts[i];
    nexts.push({(counts[i] + 1) * costs[i], i});
  }
  return counts;
}

const std::vector<int>& VnodeBalancer::BeginStep(absl::Span<const WorkerId> workers) {
  is_measured_ = true;
  pass_seconds_.clear();
  if (absl::MakeConstSpan(workers_) != workers) ChangeWorkers(workers);
  return counts_;
}

void VnodeBalancer::ChangeWorkers(absl::Span<const WorkerId> workers) {
  if (trial_.has_value()) costs_ = trial_->costs_before;  // nobody has judged it
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
}

std::vector<int> VnodeBalancer::CountsOf(absl::Span<const WorkerId> workers) const {
  return absl::MakeConstSpan(workers_) == workers ? counts_ : std::vector<int>();
}

void VnodeBalancer::BeginWindow() {
  vnode_seconds_.assign(workers_.size(), {});
  step_seconds_.clear();
}

void VnodeBalancer::Use(std::vector<double> costs) {
  costs_ = std::move(costs);
  if (!costs_.empty() && has_choice()) {
    counts_ = CountsByCost(num_vnodes_, costs_, /*least=*/1);
    return;
  }
  counts_.clear();
  const int size = static_cast<int>(workers_.size());
  for (int i = 0; i < size; ++i) counts_.push_back(static_cast<int>(PartOf(num_vnodes_, i, size).count));
}

std::optional<VnodeBalancer::Decision> VnodeBalancer::EndStep(double seconds) {
  if (!std::exchange(is_measured_, false) || !has_choice()) return std::nullopt;
  std::vector<double> vnode_seconds;
  for (size_t i = 0; i < workers_.size(); ++i) {
    // Workers say it, and no pass is longer than its step.
    const double pass_seconds = std::min(pass_seconds_[workers_[i]], seconds);
    if (!(pass_seconds > 0)) return std::nullopt;  // it did not say
    vnode_seconds.push_back(pass_seconds / counts_[i]);
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
  const bool is_kept = window.step_seconds < trial.seconds_before;
  if (is_kept) {
    windows_between_trials_ = 1;
  } else {
    Use(trial.costs_before);
    windows_to_wait_ = windows_between_trials_;
    windows_between_trials_ = std::min(2 * windows_between_trials_, kMostWindowsBetweenTrials);
  }
  Decision decision = Decide(is_kept ? Decision::Kind::kKept : Decision::Kind::kTakenBack, window);
  decision.step_seconds_before = trial.seconds_before;
  return decision;
}

std::optional<VnodeBalancer::Decision> VnodeBalancer::LookForBetter(const Medians& window) {
  const std::vector<double>& costs = window.vnode_seconds;
  const double longest = LongestPass(counts_, costs);
  const auto gain_of = [&](const std::vector<int>& counts) { return longest - LongestPass(counts, costs); };
  const double worthwhile = kWorthwhile * window.step_seconds;
  if (const double gain = gain_of(CountsByCost(num_vnodes_, costs, /*least=*/1)); gain >= worthwhile) {
    trial_ = Trial{.costs_before = costs_, .seconds_before = window.step_seconds};
    Use(costs);
    Decision decision = Decide(Decision::Kind::kTried, window);
    decision.promised_step_seconds = window.step_seconds - gain;
    return decision;
  }
  const std::vector<int> without_slow = CountsByCost(num_vnodes_, costs, /*least=*/0);
  const double gain = gain_of(without_slow);
  if (gain < worthwhile) return std::nullopt;
  const auto slow = static_cast<size_t>(std::find(without_slow.begin(), without_slow.end(), 0) - without_slow.begin());
  if (slow == workers_.size() || !told_slow_.insert(workers_[slow]).second) return std::nullopt;
  Decision decision = Decide(Decision::Kind::kWorkerSlow, window);
  decision.promised_step_seconds = window.step_seconds - gain;
  decision.slow_worker = workers_[slow];
  return decision;
}

VnodeBalancer::Decision VnodeBalancer::Decide(Decision::Kind kind, const Medians& window) const {
  Decision decision{.kind = kind, .workers = {}, .step_seconds = window.step_seconds};
  for (size_t i = 0; i < counts_.size(); ++i) {
    decision.workers.push_back({workers_[i], counts_[i], window.vnode_seconds[i]});
  }
  return decision;
}

}  // namespace eps::server
