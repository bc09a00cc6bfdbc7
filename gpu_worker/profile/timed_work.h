#ifndef EPS_GPU_WORKER_PROFILE_TIMED_WORK_H_
#define EPS_GPU_WORKER_PROFILE_TIMED_WORK_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps::worker {

// How long work takes, whatever it is, and how often it is done while other work is. Times are in seconds.
//
// Threads: one at a time, but for RatesTogether
// Errors:  the work's own, at once: what was measured until then is lost

// Since some fixed moment; never goes back. Tests bring one that goes on with what they count, not with time.
using WorkClock = std::function<double()>;
double HostSeconds();  // the host's

void Pause(double seconds);  // sleeps, and is late by some tens of microseconds

// A piece of work that can be done again and again, and waited for; errors stay in the stream.
using Unit = std::function<absl::Status()>;
// The same so many times, enqueued one behind the other as in a step, where nobody waits for each; then waited for.
using Batch = std::function<absl::Status(int64_t times)>;

// Short work goes on for so long before it is waited for: a stream takes some ten microseconds to be woken and waited
// for, a GPU's a hundred where threads of the host want every core.
inline constexpr double kBatchSeconds = 5e-3;
inline constexpr int64_t kMostInBatch = 1000;
inline constexpr int kLeastBatches = 3;  // of work whose rate is wanted

// The mean, as a step is a sum of many; without the smallest and largest tenth. Of one sample at least.
double TrimmedMean(std::vector<double> samples);

// A piece of work whose time is wanted.
struct TimedUnit {
  std::string what;  // for people
  Unit unit;
  int64_t times = 1;                 // that `unit` does it each time
  std::vector<double> samples = {};  // seconds of one time
  WorkClock clock = HostSeconds;

  absl::Status RunFor(double seconds);  // and once at least; adds samples
  double Seconds() const { return TrimmedMean(samples); }
};

// How many of them take so long, from one to kMostInBatch. Asks one, and, as most of the time of a short one is the
// wait for its end, then as many as that says: three batches each, of which the fastest counts.
absl::StatusOr<int64_t> TimesIn(double seconds, const Batch& batch, const WorkClock& clock = HostSeconds);

// What goes on and on, so many at once.
struct Repeated {
  Batch batch;
  int64_t times = 1;
  // The same with a pause between each two, which the one who waits for them all has no part in.
  std::function<absl::Status(int64_t times, double pause_seconds)> apart = {};
};

// How often each of them is done in a second while all of them run, for so long and for kLeastBatches at least: who has
// been measured goes on until all have.
//
// Threads: each of them runs in a thread of its own, which asks `clock` too
absl::StatusOr<std::vector<double>> RatesTogether(const std::vector<const Repeated*>& all, double seconds,
                                                  const WorkClock& clock = HostSeconds);

// What is slowed down by something else.
struct WorkBeside {
  // How long so many of it take, by its own account: from when it begins until it is done, whoever waits for it. Runs
  // `meanwhile` once they are enqueued.
  std::function<absl::StatusOr<double>(int64_t times, const Unit& meanwhile)> work;
  double work_seconds = 0;  // of one alone
  const Repeated* other = nullptr;
  double other_seconds = 0;  // of one alone
  double slowdown = 1;       // by how much one takes longer beside `work`, as far as is known
};

// By how much the work takes longer for each of something else that is begun while it goes on, one at a time, as copies
// and updates come in a step: on `cpu` each then takes a core at once, and a kernel waits for what a thread without one
// has begun. Where both go on and on the threads find a balance, and the loss is less. What it takes until work begins,
// and until its end is known, is in the time alone as well, and counts for nothing. May be below 0
// where nothing is lost: it is a difference of two measurements, which take turns for `seconds`.
absl::StatusOr<double> SecondsLost(const WorkBeside& beside, double seconds, const WorkClock& clock = HostSeconds);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_PROFILE_TIMED_WORK_H_
