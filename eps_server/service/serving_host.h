#ifndef EPS_SERVER_SERVICE_SERVING_HOST_H_
#define EPS_SERVER_SERVICE_SERVING_HOST_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/monotonic_clock.h"
#include "common/base/mutex.h"
#include "common/choices/choices.h"
#include "common/spec/run_config.h"
#include "eps_server/membership/membership.h"
#include "eps_server/service/sampler.h"
#include "eps_server/service/worker_host.h"
#include "eps_server/step/run_status.h"

namespace eps::server {

struct GenerateOptions {
  std::vector<int32_t> prompt;  // at least one token
  int64_t max_tokens = 1;       // 1 of a classifier
  SamplingOptions sampling;
};

// Workers of a daemon that serves a checkpoint, and the texts that they write.
//
// A text is a chain of requests for the logits after its last `context` tokens; each goes to the worker that has the
// fewest, and to another one if that is lost. Without a worker it waits for one, and ends if none comes in time.
//
// Threads: safe; no thread of its own
class ServingHost final : public WorkerHost {
 public:
  explicit ServingHost(const RunConfig& run, MonotonicClock clock = SteadyClock())
      : vocab_(run.model.vocab),
        num_outputs_(run.model.num_outputs()),
        is_classifier_(run.model.is_classifier()),
        context_(run.model.context),
        clock_(std::move(clock)) {}

  // What comes next in a text; of a classifier, whose answer is one class, the logits of all.
  struct Drawn {
    int32_t token = 0;
    std::vector<float> class_logits;
  };
  // One text under way.
  struct Text {
    std::function<void(Drawn drawn)> on_token;  // in order; not under a lock
    // Once, after the last token. Errors: UNAVAILABLE no worker was attached for longest_wait()
    std::function<void(absl::Status)> on_end;
  };
  // Errors: INVALID_ARGUMENT naming the field
  absl::StatusOr<int64_t> Generate(GenerateOptions options, Text text);
  // Its on_end is not called any more. Quiet for one that has ended.
  void CancelText(int64_t text_id);

  absl::Duration lease() const override { return absl::Seconds(30); }
  static constexpr absl::Duration longest_wait() { return absl::Minutes(2); }
  absl::StatusOr<WorkerId> Attach(WorkerInfo info) override;
  absl::Status Connect(WorkerId worker, std::shared_ptr<EventChannel> channel) override;
  absl::Status Heartbeat(WorkerId worker) override;
  // Bits are promised for training alone.
  Choices HeldChoices(const std::string&) const override { return {}; }
  absl::StatusOr<Choices> OfferChoices(WorkerId, Choices) override {
    return absl::FailedPreconditionError("event: choices: this daemon serves a checkpoint");
  }
  absl::Status Ready(WorkerId worker, WorkerMemory memory) override;
  absl::Status ReportGroup(WorkerId, const GroupReport&) override {
    return absl::FailedPreconditionError("event: of a group: this daemon serves a checkpoint");
  }
  absl::Status PassDone(WorkerId, StepId, std::vector<VnodeRecord>, PassTiming) override {
    return absl::FailedPreconditionError("event: pass_done: this daemon serves a checkpoint");
  }
  absl::Status EvaluationDone(WorkerId, Version, int64_t, std::vector<VnodeRecord>, PassTiming) override {
    return absl::FailedPreconditionError("event: pass_done: this daemon serves a checkpoint");
  }
  absl::Status Inferred(WorkerId worker, int64_t request_id, absl::StatusOr<std::vector<float>> logits) override;
  absl::Status Leave(WorkerId worker) override;
  void Disconnect(WorkerId worker, absl::Status why) override;

  // Ends the streams of workers that were not heard of for a lease, and gives their texts to others; ends texts that
  // have waited for a worker for too long. Call it now and then: the host has no thread of its own.
  void EndExpired();

  std::vector<WorkerStatus> Workers() const;
  // What a run's status says of workers: those that are there, how many came and were lost, the lease.
  void FillWorkers(RunStatus& status) const;
  // Tells every worker that it is not needed any more.
  void Finish();

 private:
  struct Worker {
    WorkerStatus status;
    std::shared_ptr<EventChannel> channel;
    bool ready = false;
    bool leaving = false;
    int requests = 0;
    absl::Duration deadline;  // of its lease
  };
  struct TextState {
    GenerateOptions options;
    Text text;
    std::vector<int32_t> tokens;  // prompt and what was written
    int64_t written = 0;
    absl::Duration begun;
    WorkerId worker;         // who computes the next token; 0: nobody yet
    bool answering = false;  // the next token is on its way out
  };
  struct Sending {  // what to send when the lock is gone
    std::shared_ptr<EventChannel> channel;
    WorkerId worker;
    bool is_finish = false;  // else the request of a text
    int64_t text_id = 0;
    std::vector<int32_t> tokens;
  };

  absl::Status Check(const GenerateOptions& options) const;
  // A sign of life of `worker`, which renews its lease.
  absl::StatusOr<Worker*> Find(WorkerId worker) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives every text that nobody works on to a ready worker, and lets those go that want to and have none.
  std::vector<Sending> Distribute() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Send(const std::vector<Sending>& sendings);
  std::vector<WorkerStatus> List() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndExpiredLeases();
  void EndExpiredTexts();

  const int64_t vocab_, num_outputs_;
  const bool is_classifier_;
  const int64_t context_;
  const MonotonicClock clock_;

  mutable Mutex mu_;
  std::map<int64_t, Worker> workers_ ABSL_GUARDED_BY(mu_);
  std::map<int64_t, TextState> texts_ ABSL_GUARDED_BY(mu_);  // the id is also the id of its one request
  int64_t last_worker_ ABSL_GUARDED_BY(mu_) = 0;  // and how many attached
  int64_t num_lost_ ABSL_GUARDED_BY(mu_) = 0;
  bool finishes_ ABSL_GUARDED_BY(mu_) = false;  // every worker was told to end, and nobody misses it
  int64_t last_text_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Duration last_manned_ ABSL_GUARDED_BY(mu_) = absl::ZeroDuration();  // when a worker was last seen attached
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_SERVING_HOST_H_
