#ifndef EPS_GPU_WORKER_RELAY_PULL_CLOCK_H_
#define EPS_GPU_WORKER_RELAY_PULL_CLOCK_H_

#include <chrono>
#include <cstddef>
#include <vector>

namespace eps::worker {

// Tells how much of the time that compute waited for pulls was spent waiting for versions: the daemon had not made
// the weights yet, and no faster transfer would have helped.
//
// Threads: none of its own. Pulled is called on the in-stream, Arrived on the compute stream, each for its own index;
//          the rest when both are idle.
class PullClock {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // Forgets everything; the coming pass has `num_pulls` pull steps.
  void Start(size_t num_pulls) { pulls_.assign(num_pulls, {}); }

  // The compute stream has come to its wait for pull `index`.
  void Arrived(size_t index, Time now) { pulls_[index].arrived = now; }
  // A blob of pull `index` was asked for at `begin`, waited `version_wait_seconds` for its version, and was there
  // at `end`.
  void Pulled(size_t index, Time begin, double version_wait_seconds, Time end);

  // Of the compute stream, in the pass.
  double VersionWaitSeconds() const;

 private:
  struct Interval {
    Time begin, end;
  };
  struct Pull {
    Time arrived = Time::max();  // max: compute never waited for it
    Time end = Time::min();
    std::vector<Interval> version_waits;
  };
  std::vector<Pull> pulls_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_PULL_CLOCK_H_
