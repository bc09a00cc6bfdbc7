#include "gpu_worker/profile/timed_work.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"

namespace eps::worker {
namespace {

// What work loses to something else is measured over so many of that at most, which have so much more time than they
// are expected to take, and are expected to be slowed down by no more than this.
constexpr double kMostOthers = 100, kRoom = 1.2, kMostSlowdown = 4;

// Seconds of one of them.
absl::StatusOr<double> LeastSeconds(const Batch& batch, int64_t times, const WorkClock& clock) {
  TimedUnit unit = {.what = "", .unit = [&] { return batch(times); }, .times = times, .clock = clock};
  for (int i = 0; i < 3; ++i) {  // the machine may have stood still in one of them
    EPS_RETURN_IF_ERROR(unit.RunFor(0));
  }
  return *std::min_element(unit.samples.begin(), unit.samples.end());
}

}  // namespace

double HostSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Pause(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

double TrimmedMean(std::vector<double> samples) {
  std::sort(samples.begin(), samples.end());
  const auto dropped = static_cast<std::ptrdiff_t>(samples.size() / 10);
  const double sum = std::accumulate(samples.begin() + dropped, samples.end() - dropped, 0.0);
  return sum / static_cast<double>(static_cast<std::ptrdiff_t>(samples.size()) - 2 * dropped);
}

absl::Status TimedUnit::RunFor(double seconds) {
  const double begin = clock();
  do {
    const double start = clock();
    EPS_RETURN_IF_ERROR(unit());
    samples.push_back((clock() - start) / static_cast<double>(times));
  } while (clock() - begin < seconds);
  return absl::OkStatus();
}

absl::StatusOr<int64_t> TimesIn(double seconds, const Batch& batch, const WorkClock& clock) {
  int64_t times = 1;
  for (int asked = 0; asked < 2; ++asked) {
    EPS_ASSIGN_OR_RETURN(const double each, LeastSeconds(batch, times, clock));
    const auto fit = static_cast<int64_t>(std::clamp(seconds / each, 1.0, double{kMostInBatch}));
    if (fit <= times) return fit;
    times = fit;
  }
  return times;
}

absl::StatusOr<std::vector<double>> RatesTogether(const std::vector<const Repeated*>& all, double seconds,
                                                  const WorkClock& clock) {
  std::vector<double> rates(all.size());
  std::vector<absl::Status> statuses(all.size());
  std::atomic<size_t> ready = 0, measured = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < all.size(); ++i) {
    threads.emplace_back([&, i] {
      ready.fetch_add(1);
      while (ready.load() < all.size()) std::this_thread::yield();
      const double begin = clock();
      bool is_measured = false;
      for (int64_t done = 1; measured.load() < all.size(); ++done) {
        statuses[i] = all[i]->batch(all[i]->times);
        const double passed = clock() - begin;
        const bool ends = !statuses[i].ok() || (done >= kLeastBatches && passed >= seconds);
        if (ends && !std::exchange(is_measured, true)) {
          rates[i] = static_cast<double>(done * all[i]->times) / passed;
          measured.fetch_add(1);
        }
        if (!statuses[i].ok()) break;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) EPS_RETURN_IF_ERROR(status);
  return rates;
}

absl::StatusOr<double> SecondsLost(const WorkBeside& beside, double seconds, const WorkClock& clock) {
  const double begin_pause = clock();
  Pause(beside.other_seconds);
  const double pause_seconds = clock() - begin_pause;  // and what a sleeper is late by
  const double begin_one = clock();
  EPS_RETURN_IF_ERROR(beside.other->batch(1));
  const double one_seconds = kRoom * (clock() - begin_one) * std::clamp(beside.slowdown, 1.0, kMostSlowdown);
  // So much work that one ends before it, and as many as do: the more, the less a difference errs.
  const double least_seconds = std::max(std::min(kBatchSeconds, seconds / kLeastBatches), one_seconds);
  const double works = std::max(1.0, std::ceil(least_seconds / beside.work_seconds));
  const double more = (works * beside.work_seconds - one_seconds) / (one_seconds + kRoom * pause_seconds);
  const auto times = static_cast<int64_t>(1 + std::clamp(more, 0.0, kMostOthers - 1));
  const Unit nothing = [] { return absl::OkStatus(); };
  const Unit others = [&] { return beside.other->apart(times, beside.other_seconds); };
  std::vector<double> alone, slowed;
  const double begin = clock();
  do {
    for (auto* samples : {&alone, &slowed}) {
      EPS_ASSIGN_OR_RETURN(samples->emplace_back(),
                           beside.work(static_cast<int64_t>(works), samples == &alone ? nothing : others));
    }
  } while (clock() - begin < seconds);
  return (TrimmedMean(std::move(slowed)) - TrimmedMean(std::move(alone))) / static_cast<double>(times);
}

}  // namespace eps::worker
