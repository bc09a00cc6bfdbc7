#ifndef EPS_SERVER_STEP_VNODE_BALANCER_H_
#define EPS_SERVER_STEP_VNODE_BALANCER_H_

#include <map>
#include <optional>
#include <set>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"

namespace eps::server {

// How many of `num_vnodes` each of several workers gets, so that the last of them is done as early as can be, where a
// vnode takes worker i costs[i] > 0. Each gets `least`, where there are vnodes enough. Of equals the later ones get
// more. Takes num_vnodes * log(workers).
std::vector<int> CountsByCost(int num_vnodes, absl::Span<const double> costs, int least);

// How many vnodes of a step each worker computes: as many for all at first, then such that all are done at about the
// same time, as different devices want it. No bit depends on it. VirtualFlow's heterogeneous training (arXiv
// 2009.09523) solves the same offline, for each type of GPU; here the steps of the run are what is measured, so that a
// device that others slow down counts too.
//
// Every kWindow steps give medians: what a vnode takes each worker, and what the step takes. Where other counts promise
// a step shorter by kWorthwhile they are tried for as many steps, and stay if it did get shorter: what seems a worker's
// own speed may be a limit that all share. Otherwise the counts of before come back, and a window passes before the
// next trial, then two, four and so on, until one is kept or the workers change. Where there are more vnodes than
// workers each keeps one, by which it is measured; else the counts are even, and nothing is.
//
// Threads: none of its own; the owner guards it.
class VnodeBalancer {
 public:
  static constexpr int kWindow = 7;                     // steps; three that something disturbs do not show
  static constexpr double kWorthwhile = 0.05;           // of a step: more than medians of equal workers differ by
  static constexpr int kMostWindowsBetweenTrials = 64;  // one of 66 is then a trial, which may cost some per cent

  explicit VnodeBalancer(int num_vnodes) : num_vnodes_(num_vnodes) {}

  // A step begins, and is shared out among `workers` (rising, at least one), each for itself. Returns their counts.
  const std::vector<int>& BeginStep(absl::Span<const WorkerId> workers);
  // `worker` has computed what it was given, in so many seconds of its own: not those in which it waited for others.
  void OnPass(WorkerId worker, double seconds) {
    if (is_measured_) pass_seconds_[worker] = seconds;
  }
  // What the step takes says nothing: some of it was given out again, for instance.
  void SkipStep() { is_measured_ = false; }
  // The counts of the newest step that was begun here, if it was of these workers; else empty.
  std::vector<int> CountsOf(absl::Span<const WorkerId> workers) const;

  struct WorkerVnodes {
    WorkerId worker;
    int vnodes = 0;            // from the next step on
    double vnode_seconds = 0;  // that one of them took it in the window, in the median
  };
  struct Decision {
    enum class Kind {
      kTried,       // other counts
      kKept,        // those that were tried
      kTakenBack,   // those of before
      kWorkerSlow,  // with its one vnode `slow_worker` makes steps longer than they would be without it; said once
    } kind = Kind::kTried;
    std::vector<WorkerVnodes> workers;
    double step_seconds = 0;           // of the window's steps, in the median
    double step_seconds_before = 0;    // kKept, kTakenBack: of the window before the trial
    double promised_step_seconds = 0;  // kTried: with the other counts; kWorkerSlow: without it
    WorkerId slow_worker;
    bool changes_counts() const { return kind == Kind::kTried || kind == Kind::kTakenBack; }
  };
  // All of the step is in, so many seconds after it began. Of a step that leaves layers out, give what a whole one
  // would take, as of its passes: what is compared is then the same work.
  std::optional<Decision> EndStep(double seconds);

 private:
  // What a window gave, medians.
  struct Medians {
    double step_seconds = 0;
    std::vector<double> vnode_seconds;  // by worker
  };
  struct Trial {
    std::vector<double> costs_before;
    double seconds_before = 0;
  };
  void ChangeWorkers(absl::Span<const WorkerId> workers);
  void BeginWindow();
  void Use(std::vector<double> costs);
  // Whether the counts can be other than even.
  bool has_choice() const { return workers_.size() > 1 && static_cast<int>(workers_.size()) < num_vnodes_; }
  Decision JudgeTrial(const Medians& window);
  std::optional<Decision> LookForBetter(const Medians& window);
  Decision Decide(Decision::Kind kind, const Medians& window) const;

  const int num_vnodes_;
  std::vector<WorkerId> workers_;  // of the newest step; rising
  std::vector<double> costs_;      // by worker: what the counts in use come from; empty: none are known
  std::vector<int> counts_;        // in use, by worker

  bool is_measured_ = false;                        // the step in progress
  std::map<WorkerId, double> pass_seconds_;         // of the same
  std::vector<std::vector<double>> vnode_seconds_;  // of the window, by worker and step
  std::vector<double> step_seconds_;                // of the same, by step

  std::optional<Trial> trial_;      // the window is its
  int windows_between_trials_ = 1;  // after the next one that is taken back
  int windows_to_wait_ = 0;         // before the next one
  std::set<WorkerId> told_slow_;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_VNODE_BALANCER_H_
