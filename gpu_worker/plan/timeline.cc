#include "gpu_worker/plan/timeline.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"

namespace eps::worker {
namespace {

constexpr int kPasses = 3;           // the third is like all that follow
constexpr double kRounding = 1e-12;  // of moments: what ends together ends together
constexpr double kNever = std::numeric_limits<double>::infinity();

size_t Index(Activity activity) { return static_cast<size_t>(activity); }
Activity ActivityOf(StreamId stream) {
  return stream == StreamId::kCompute ? Activity::kCompute : stream == StreamId::kIn ? Activity::kIn : Activity::kOut;
}
bool IsPush(const RelayStep& step) {
  return step.kind == RelayStep::Kind::kPush || step.kind == RelayStep::Kind::kPushPart;
}

class Simulation {
 public:
  Simulation(const ModelSpec& model, const std::vector<RelayStep>& steps, const StepCosts& costs)
      : model_(model),
        steps_(steps),
        costs_(costs),
        is_last_push_(steps.size()),
        version_(model.blobs.size()),
        contribution_seconds_(model.blobs.size()) {
    std::vector<bool> pushed(model.layers.size());
    for (size_t i = steps.size(); i-- > 0;) {
      queues_[static_cast<size_t>(steps[i].stream())].push_back(static_cast<int>(i));
      seconds_.push_back(costs.seconds(steps[i]));
      if (!IsPush(steps[i])) continue;
      const auto layer = static_cast<size_t>(steps[i].layer.value());
      is_last_push_[i] = !pushed[layer];
      pushed[layer] = true;
    }
    std::reverse(seconds_.begin(), seconds_.end());
    for (auto& queue : queues_) std::reverse(queue.begin(), queue.end());
    for (const BlobSpec& blob : model.blobs) {
      const bool is_pushed = std::any_of(blob.uses.begin(), blob.uses.end(),
                                         [&](LayerId layer) { return pushed[static_cast<size_t>(layer.value())]; });
      updated_.push_back(!blob.frozen && is_pushed);
    }
  }

  Timeline Run() {
    StartPass(0);
    while (true) {
      while (StartWhatCan()) {
      }
      if (pass_is_over() && pass_ == kPasses - 1) break;
      if (pass_is_over() && next_pass_at_ == kNever) next_pass_at_ = now_ + costs_.between_steps_seconds;
      Advance();
    }
    timeline_.step_seconds = now_ - pass_start_ + costs_.between_steps_seconds;
    timeline_.compute_wait_seconds[static_cast<size_t>(WaitCause::kNone)] += costs_.between_steps_seconds;
    for (auto* spans : {&timeline_.steps, &timeline_.updates}) {
      for (TimelineSpan& span : *spans) span.begin -= pass_start_, span.end -= pass_start_;
    }
    return std::move(timeline_);
  }

 private:
  // One piece of work that is under way, or handed over, of one activity.
  struct Work {
    int index = 0;
    double begin = 0;         // until then it is handed over, and shares nothing
    double left_seconds = 0;  // alone
  };
  // The daemon's, of a blob, in the order in which they are made: what is made together counts as the last of it.
  enum class JobKind { kEarlyUpdate, kSum, kUpdate };
  struct Job {
    JobKind kind = JobKind::kUpdate;
    double seconds = 0;
  };

  void StartPass(int pass) {
    pass_ = pass;
    pass_start_ = now_;
    next_pass_at_ = kNever;
    next_.fill(0);
    waits_.fill(false);
    done_.assign(steps_.size(), false);
    num_done_ = 0;
    uses_left_.clear();
    for (const BlobSpec& blob : model_.blobs) uses_left_.push_back(static_cast<int>(blob.uses.size()));
    any_layer_pushed_ = false;
    records_ = pass == kPasses - 1;
  }
  bool pass_is_over() const { return num_done_ == steps_.size(); }

  // Whether anything was started, or was over at once.
  bool StartWhatCan() {
    bool started = false;
    for (size_t stream = 0; stream < queues_.size(); ++stream) {
      auto& work = work_[Index(ActivityOf(static_cast<StreamId>(stream)))];
      while (!work.has_value() && next_[stream] < queues_[stream].size()) {
        const int index = queues_[stream][next_[stream]];
        if (!CanStart(index)) {
          waits_[stream] = true;
          if (static_cast<StreamId>(stream) == StreamId::kCompute) wait_cause_ = CauseOf(Blocker(index));
          break;
        }
        ++next_[stream];
        const double handover = std::exchange(waits_[stream], false) ? costs_.handover_seconds : 0;
        work = Work{index, now_ + handover, seconds_[static_cast<size_t>(index)]};
        started = true;
        if (handover <= 0 && work->left_seconds <= 0) End(ActivityOf(static_cast<StreamId>(stream)));
      }
    }
    auto& update = work_[Index(Activity::kUpdate)];
    if (update.has_value() && !jobs_.empty() && jobs_.begin()->first < update->index)
      Interrupt(*std::exchange(update, {}));
    while (!update.has_value() && !jobs_.empty()) {
      const auto& [blob, job] = *jobs_.begin();
      update = Work{blob, now_, job.seconds};
      job_kind_ = job.kind;
      jobs_.erase(jobs_.begin());
      started = true;
      if (update->left_seconds <= 0) End(Activity::kUpdate);
    }
    return started;
  }
  // For a blob that is pulled sooner: chunk by chunk, so that nothing is done twice.
  void Interrupt(const Work& update) {
    if (records_ && now_ > update.begin) timeline_.updates.push_back({update.index, update.begin, now_});
    AddJob(update.index, {job_kind_, update.left_seconds});
  }
  // What waits of the same blob is made with it.
  void AddJob(int blob, const Job& job) {
    const auto [waiting, is_first] = jobs_.emplace(blob, job);
    if (is_first) return;
    waiting->second.kind = std::max(waiting->second.kind, job.kind);
    waiting->second.seconds += job.seconds;
  }
  bool CanStart(int index) const { return Blocker(index) == index; }
  // The step that it waits for; a pull that waits for a version: -1; itself: nothing.
  int Blocker(int index) const {
    const RelayStep& step = steps_[static_cast<size_t>(index)];
    for (const int other : step.waits_for) {
      if (!done_[static_cast<size_t>(other)]) return other;
    }
    if (step.kind != RelayStep::Kind::kPull) return index;
    for (const BlobUse& use : model_.layer(step.layer).blobs) {
      const auto blob = static_cast<size_t>(use.blob.value());
      if (updated_[blob] && version_[blob] < pass_) return -1;
    }
    return index;
  }

  // Of waiting for that step, which may wait for a version itself; -1: for a version.
  WaitCause CauseOf(int blocker) const {
    if (blocker < 0 || Blocker(blocker) < 0) return WaitCause::kVersion;
    return steps_[static_cast<size_t>(blocker)].cause();
  }

  bool Runs(size_t activity) const { return work_[activity].has_value() && work_[activity]->begin <= now_; }
  void Advance() {
    std::array<double, kNumActivities> speed = {}, end = {};  // speed 0: it is handed over still
    double until = next_pass_at_;
    for (size_t a = 0; a < work_.size(); ++a) {
      if (!work_[a].has_value()) continue;
      if (Runs(a)) {
        speed[a] = 1;
        for (size_t b = 0; b < work_.size(); ++b) {
          if (b != a && Runs(b)) speed[a] *= costs_.sharing[a][b];
        }
        end[a] = now_ + work_[a]->left_seconds / speed[a];
      } else {
        end[a] = work_[a]->begin + (work_[a]->left_seconds > 0 ? kNever : 0);
        until = std::min(until, work_[a]->begin);
      }
      until = std::min(until, end[a]);
    }
    EPS_CHECK(until < kNever);  // else steps wait for each other
    const double passed = until - now_;
    CountWait(passed);
    now_ = until;
    for (size_t a = 0; a < work_.size(); ++a) {
      if (!work_[a].has_value()) continue;
      if (records_ && speed[a] > 0) timeline_.busy_seconds[a] += passed;
      work_[a]->left_seconds -= passed * speed[a];
      if (end[a] - until <= kRounding * until) End(static_cast<Activity>(a));
    }
    if (now_ >= next_pass_at_ && pass_ + 1 < kPasses) StartPass(pass_ + 1);
  }

  void CountWait(double passed) {
    const auto compute = static_cast<size_t>(StreamId::kCompute);
    if (!records_ || Runs(Index(Activity::kCompute))) return;
    const bool is_done = !work_[Index(Activity::kCompute)].has_value() && next_[compute] == queues_[compute].size();
    if (is_done) wait_cause_ = WaitCause::kPush;  // for the gradients that leave last
    timeline_.compute_wait_seconds[static_cast<size_t>(wait_cause_)] += passed;
  }

  void End(Activity activity) {
    auto& work = work_[Index(activity)];
    const TimelineSpan span = {work->index, work->begin, now_};
    work.reset();
    if (activity == Activity::kUpdate) {
      if (records_) timeline_.updates.push_back(span);
      EndJob(span.index);
      return;
    }
    if (records_) timeline_.steps.push_back(span);
    done_[static_cast<size_t>(span.index)] = true;
    ++num_done_;
    if (IsPush(steps_[static_cast<size_t>(span.index)])) EndPush(static_cast<size_t>(span.index));
  }

  void EndPush(size_t index) {
    const LayerSpec& layer = model_.layer(steps_[index].layer);
    const double elem_seconds =
        costs_.contribution_seconds(steps_[index]) / static_cast<double>(std::max<int64_t>(1, layer.trainable_elems));
    if (is_last_push_[index] && !std::exchange(any_layer_pushed_, true)) {
      for (const BlobSpec& blob : model_.blobs) {
        if (blob.uses.size() == 1) AddEarlyUpdate(blob.id);
      }
    }
    for (const BlobUse& use : layer.blobs) {
      const auto blob = static_cast<size_t>(use.blob.value());
      if (model_.blobs[blob].frozen) continue;
      contribution_seconds_[blob] += elem_seconds * static_cast<double>(model_.blobs[blob].num_elems);
      if (!is_last_push_[index]) continue;
      if (--uses_left_[blob] > 0) {
        if (uses_left_[blob] == 1 && use.use > 0) AddEarlyUpdate(use.blob);
        continue;
      }
      const bool holds = !costs_.sum_seconds.empty();
      const double seconds = holds ? costs_.sum_seconds[blob] : costs_.update_seconds[blob] - EarlySeconds(use.blob);
      AddJob(use.blob.value(),
             {holds ? JobKind::kSum : JobKind::kUpdate, seconds + std::exchange(contribution_seconds_[blob], 0)});
    }
  }
  double EarlySeconds(BlobId blob) const {
    return costs_.early_update_seconds.empty() ? 0 : costs_.early_update_seconds[static_cast<size_t>(blob.value())];
  }
  void AddEarlyUpdate(BlobId blob) {
    const double seconds = EarlySeconds(blob);
    if (seconds > 0) AddJob(blob.value(), {JobKind::kEarlyUpdate, seconds});
  }
  void EndJob(int blob_of_job) {
    if (job_kind_ == JobKind::kEarlyUpdate) return;
    if (job_kind_ == JobKind::kUpdate) {
      ++version_[static_cast<size_t>(blob_of_job)];
      return;
    }
    // It may be the next pass already.
    ++num_sums_;
    if (num_sums_ < std::count(updated_.begin(), updated_.end(), true)) return;
    num_sums_ = 0;
    for (const BlobSpec& blob : model_.blobs) {
      const auto index = static_cast<size_t>(blob.id.value());
      if (updated_[index]) AddJob(blob.id.value(), {JobKind::kUpdate, costs_.update_seconds[index]});
    }
  }

  const ModelSpec& model_;
  const std::vector<RelayStep>& steps_;
  const StepCosts& costs_;
  std::array<std::vector<int>, kNumStreams> queues_;  // steps of each stream, in order
  std::vector<double> seconds_;                       // by step
  std::vector<bool> is_last_push_;                    // by step: of its layer
  std::vector<bool> updated_;  // by blob: not frozen, nor dropped by every pass, nor of one that goes forward alone

  double now_ = 0;
  int pass_ = 0;
  bool records_ = false;
  double pass_start_ = 0, next_pass_at_ = kNever;
  std::array<size_t, kNumStreams> next_ = {};  // into queues_
  std::array<bool, kNumStreams> waits_ = {};   // for another stream's work, or a version
  WaitCause wait_cause_ = WaitCause::kPush;    // compute's latest: a handover belongs to what was waited for
  std::vector<bool> done_;
  size_t num_done_ = 0;
  std::array<std::optional<Work>, kNumActivities> work_;
  std::map<int, Job> jobs_;              // by blob, which is the order of pulls; the one under way is not among them
  JobKind job_kind_ = JobKind::kUpdate;  // of the one under way
  std::vector<int> version_;             // by blob
  std::vector<int> uses_left_;           // by blob: whose gradients are not in yet
  bool any_layer_pushed_ = false;        // in this pass
  std::vector<double> contribution_seconds_;  // by blob: of what has been pushed of it, and belongs to no job yet
  int64_t num_sums_ = 0;                      // made of a step's, where updates are held
  Timeline timeline_;
};

}  // namespace

Activity Timeline::bound() const {
  return static_cast<Activity>(std::max_element(busy_seconds.begin(), busy_seconds.end()) - busy_seconds.begin());
}

Timeline Simulate(const ModelSpec& model, const std::vector<RelayStep>& steps, const StepCosts& costs) {
  return Simulation(model, steps, costs).Run();
}

}  // namespace eps::worker
