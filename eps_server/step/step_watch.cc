#include "eps_server/step/step_watch.h"

#include <algorithm>
#include <vector>

#include "common/base/median.h"

namespace eps::server {
namespace {

constexpr absl::Duration kShortest = absl::Seconds(10);
constexpr absl::Duration kWithoutMedian = absl::Minutes(1);
constexpr int kMedians = 5;

}  // namespace

void StepWatch::OnProgress(absl::Duration now) {
  last_progress_ = now;
  next_report_ = absl::ZeroDuration();
}

void StepWatch::OnStepDone(absl::Duration step_time) {
  recent_.push_back(step_time);
  if (recent_.size() > kRecentSteps) recent_.pop_front();
}

absl::Duration StepWatch::FirstReport() const {
  if (recent_.empty()) return std::max(kWithoutMedian, kMedians * predicted_);
  return std::max(kShortest, kMedians * Median(std::vector<absl::Duration>(recent_.begin(), recent_.end())));
}

bool StepWatch::IsLate(absl::Duration now) const {
  if (next_report_ != absl::ZeroDuration()) return true;
  const absl::Duration waited = Waited(now);
  return waited >= kShortest && waited >= FirstReport();  // as a rule no median is needed
}

bool StepWatch::IsDue(absl::Duration now) {
  const absl::Duration waited = Waited(now);
  if (!IsLate(now) || waited < next_report_) return false;
  next_report_ = 2 * waited;
  return true;
}

}  // namespace eps::server
