#ifndef EPS_GPU_WORKER_FAKE_CONTROL_H_
#define EPS_GPU_WORKER_FAKE_CONTROL_H_

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/choices/choices.h"
#include "gpu_worker/transport/control.h"

namespace eps::worker {

// What a test's worker has said to its daemon; outlives the worker.
//
// Threads: safe
struct SaidToDaemon {
  void Add(std::string what) {
    MutexLock lock(mu);
    words.push_back(std::move(what));
  }
  std::vector<std::string> All() const {
    MutexLock lock(mu);
    return words;
  }

  mutable Mutex mu;
  std::vector<std::string> words ABSL_GUARDED_BY(mu);  // "ready", "inferred 1: logits", "failed: INTERNAL: ..."
  std::vector<PassReport> passes ABSL_GUARDED_BY(mu);
  MemoryReport ready ABSL_GUARDED_BY(mu);  // the newest
};

// A daemon that gives the orders that it was made with, and then fails as its last word says.
class FakeControl final : public Control {
 public:
  FakeControl(SaidToDaemon* said, std::deque<Order> orders,
              absl::Status last = absl::UnavailableError("the daemon has ended"))
      : said_(*said), orders_(std::move(orders)), failure_(std::move(last)) {}

  absl::StatusOr<Order> Next() override {
    MutexLock lock(mu_);
    if (orders_.empty()) return cancelled_.ok() ? failure_ : cancelled_;
    Order order = std::move(orders_.front());
    orders_.pop_front();
    return order;
  }
  bool HasNext() const override {
    MutexLock lock(mu_);
    return !orders_.empty();
  }

  void SendChoices(const Choices&) override { said_.Add("choices"); }
  void SendReady(const MemoryReport& memory) override {
    said_.Add("ready");
    MutexLock lock(said_.mu);
    said_.ready = memory;
  }
  void SendPassDone(const PassReport& report) override {
    said_.Add("pass done");
    MutexLock lock(said_.mu);
    said_.passes.push_back(report);
  }
  void SendInferred(int64_t request_id, absl::StatusOr<std::vector<float>> logits) override {
    said_.Add(absl::StrCat("inferred ", request_id, ": ", logits.ok() ? "logits" : logits.status().ToString()));
  }
  void SendGroupFounded(uint64_t, const std::string&) override { said_.Add("group founded"); }
  void SendGroupJoined(uint64_t) override { said_.Add("group joined"); }
  void SendGroupFailed(uint64_t, const absl::Status&) override { said_.Add("group failed"); }
  void SendLeave() override { said_.Add("leave"); }
  void SendFailed(absl::Status why) override { said_.Add(absl::StrCat("failed: ", why.ToString())); }
  void Cancel(absl::Status reason) override {
    said_.Add(absl::StrCat("cancelled: ", reason.ToString()));
    MutexLock lock(mu_);
    if (cancelled_.ok()) cancelled_ = std::move(reason);
  }
  void CancelAndSay(absl::Status why) override {
    said_.Add(absl::StrCat("failed: ", why.ToString()));
    Cancel(std::move(why));
  }

 private:
  SaidToDaemon& said_;
  mutable Mutex mu_;
  std::deque<Order> orders_ ABSL_GUARDED_BY(mu_);
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
  absl::Status cancelled_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_FAKE_CONTROL_H_
