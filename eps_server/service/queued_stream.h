#ifndef EPS_SERVER_SERVICE_QUEUED_STREAM_H_
#define EPS_SERVER_SERVICE_QUEUED_STREAM_H_

#include <atomic>
#include <cstddef>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "common/grpc/grpc_status.h"
#include "grpcpp/support/server_callback.h"

namespace eps::server {

// The daemon's side of a bidirectional stream on which both speak when they like: what is sent waits in a queue, and the
// stream ends with its first reason, after the message that is being written.
//
// A peer that speaks and does not read is not read from either while kMaxQueued messages wait for it; what gRPC does not
// read, its flow control keeps at the peer.
//
// Threads: Send and End are safe from any, from gRPC's first call to OnDone; ReadNext and Handle are of one at a time.
template <class Incoming, class Outgoing>
class QueuedStream : public grpc::ServerBidiReactor<Incoming, Outgoing> {
 protected:
  static constexpr size_t kMaxQueued = 1024;

  // The next message goes to Handle; asked for once, at the start.
  void ReadNext() {
    {
      MutexLock lock(mu_);
      reading_paused_ = queue_.size() >= kMaxQueued;
      if (reading_paused_) return;
    }
    this->StartRead(&incoming_);
  }

  // Returns how many wait to be written. Quiet after the end.
  size_t Send(Outgoing message) {
    size_t queued = 0;
    {
      MutexLock lock(mu_);
      if (ended_) return 0;
      queue_.push_back(std::move(message));
      queued = queue_.size();
    }
    WriteNext();
    return queued;
  }

  void End(absl::Status status) {
    {
      MutexLock lock(mu_);
      if (ended_) return;
      ended_ = true;
      end_ = std::move(status);
      if (writing_) return;
    }
    this->Finish(ToGrpc(end_));
  }
  // Why the stream ended; for OnDone.
  const absl::Status& end() const { return end_; }
  // Whether the peer was cut off, rather than that it closed its side; for OnDone.
  bool is_broken() const { return is_broken_; }

  // A message; an error ends the stream. Consumes `message`.
  virtual absl::Status Handle(Incoming& message) = 0;
  // What the stream ends with when its peer has gone without a word.
  virtual absl::Status Broken() const = 0;

 private:
  void OnReadDone(bool ok) final {
    if (!ok) return End(absl::OkStatus());  // the peer has closed its side; OnDone sees to what it left
    absl::Status status = Handle(incoming_);
    incoming_.Clear();
    if (!status.ok()) return End(std::move(status));
    ReadNext();
  }

  void WriteNext() {
    bool read_on = false;
    {
      MutexLock lock(mu_);
      if (writing_ || ended_ || queue_.empty()) return;
      writing_ = true;
      outgoing_ = std::move(queue_.front());
      queue_.pop_front();
      read_on = reading_paused_ && queue_.size() <= kMaxQueued / 2;
      if (read_on) reading_paused_ = false;
    }
    // The read first: once a write is started, its end may be the stream's.
    if (read_on) this->StartRead(&incoming_);
    this->StartWrite(&outgoing_);
  }

  void OnWriteDone(bool ok) final {
    bool finish = false;
    {
      MutexLock lock(mu_);
      outgoing_.Clear();  // it may be large
      writing_ = false;
      finish = ended_;
    }
    if (finish) return this->Finish(ToGrpc(end_));
    if (!ok) return End(Broken());
    WriteNext();
  }

  void OnCancel() final {
    is_broken_ = true;
    End(Broken());
  }

  // Used by gRPC between a Start and its reaction.
  Incoming incoming_;
  Outgoing outgoing_;

  Mutex mu_;
  std::deque<Outgoing> queue_ ABSL_GUARDED_BY(mu_);
  bool reading_paused_ ABSL_GUARDED_BY(mu_) = false;  // until the peer has read some of the queue
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_;                     // written once, before ended_ is seen by whoever finishes
  std::atomic<bool> is_broken_ = false;  // atomic, because gRPC says it beside a read that ends
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_QUEUED_STREAM_H_
