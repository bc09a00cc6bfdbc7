#ifndef EPS_GPU_WORKER_TRANSPORT_CONTROL_H_
#define EPS_GPU_WORKER_TRANSPORT_CONTROL_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/choices/choices.h"
#include "common/schedule/vnode_batch.h"
#include "common/spec/run_config.h"

namespace eps::worker {

// What a worker says of itself when it attaches.
struct Introduction {
  std::string device_name;       // "cpu"
  std::string device_model;      // what its bits depend on
  int64_t device_cap_bytes = 0;  // what the user allows; > 0
  int threads = 1;
  std::string metrics_address = "";  // of its HTTP page, HOST:PORT; "": not told
};

// What the daemon answers.
struct Attachment {
  WorkerId worker_id;
  uint64_t incarnation = 0;  // of the daemon process
  RunConfig run;
  absl::Duration lease;  // a heartbeat every third of it
  bool serving = false;  // only inference will be asked for, of serving_version
  Version serving_version;
  std::string shared_memory_socket;  // path, for workers of the daemon's host; "": not offered
  Choices choices;                   // of this device model; empty: nobody has chosen yet
  // To be added to this host's steady clock to have the daemon's, as far as the call's own time allows to tell; 0 where
  // that cannot tell them apart, as on one host.
  std::chrono::nanoseconds clock_offset = {};
};

// The daemon is there, and loads its model yet: it is to be asked again, for as long as it says so.
struct StartingDaemon {
  std::string what;  // it does, for people; never ""
};

// What the planned worker uses.
struct MemoryReport {
  int64_t device_arena_bytes = 0;
  int64_t device_outside_bytes = 0;
  int64_t host_bytes = 0;
  std::string transport;              // how weights and gradients travel: "grpc" or "shared_memory"
  std::string group_kind;             // workers that say the same may form a group; "": this one forms none
  double predicted_step_seconds = 0;  // by the plan, of one worker that has every vnode; 0: nothing was measured
};

struct PassReport {
  StepId step;
  std::optional<int64_t> evaluation_round = std::nullopt;  // the assignment's
  std::vector<VnodeRecord> records;
  double seconds = 0;
  std::map<std::string, double> wait_seconds;  // compute's, by cause
  int64_t device_peak_bytes = 0;
  int64_t device_outside_bytes = 0;  // as MemoryReport's, of which libraries take some when they are first used
};

// What the daemon may ask for.
struct InferOrder {
  int64_t request_id = 0;
  std::vector<int32_t> tokens;  // 1 .. context
};
struct FinishOrder {
  bool ok = false;
  std::string reason;
  bool run_may_go_on = false;  // not done: its daemon was stopped, or has lost a step, and may be started again
};
struct ChoicesOrder {
  Choices choices;  // that hold for this device model
};
// Make a group of `size` that the others can join, or join it.
struct FormGroupOrder {
  uint64_t group = 0;
  int rank = 0, size = 0;
  std::string token;  // rank 0's; of rank 0 itself ""
};
// It is over.
struct EndGroupOrder {
  uint64_t group = 0;
  std::string reason;
};
using Order = std::variant<Assignment, InferOrder, FinishOrder, ChoicesOrder, FormGroupOrder, EndGroupOrder>;

// The control plane as an attached worker sees it: orders in, reports out. Heartbeats go out by themselves.
//
// Threads: Next from one; the rest from any, and never blocking but for SendFailed and the destructor, which comes last.
//          The destructor sends what was reported and not sent yet, and waits for that as long as the daemon does not read
//          it and the stream holds, then up to a second for the daemon's own end of the stream. After Cancel, or on a stream
//          that has failed, there is nothing to wait for
// Errors:  once the stream has failed Next gives the orders that came before, then its first error: UNAVAILABLE the
//          daemon is gone · NOT_FOUND the lease ran out · INVALID_ARGUMENT an order that makes no sense, naming the field ·
//          Cancel's reason
class Control {
 public:
  virtual ~Control() = default;

  // Blocks until there is an order.
  virtual absl::StatusOr<Order> Next() = 0;
  // Whether Next would return at once. Any thread.
  virtual bool HasNext() const = 0;

  // What this worker would choose; a ChoicesOrder answers. Before SendReady.
  virtual void SendChoices(const Choices& choices) = 0;
  virtual void SendReady(const MemoryReport& memory) = 0;
  virtual void SendPassDone(const PassReport& report) = 0;
  // Logits (vocab), or why there are none.
  virtual void SendInferred(int64_t request_id, absl::StatusOr<std::vector<float>> logits) = 0;
  // Of a group: how the others join it; that all have; that it is over or never came about.
  virtual void SendGroupFounded(uint64_t group, const std::string& token) = 0;
  virtual void SendGroupJoined(uint64_t group) = 0;
  virtual void SendGroupFailed(uint64_t group, const absl::Status& why) = 0;
  // This worker wants to go: a FinishOrder comes once nobody needs what it has been given.
  virtual void SendLeave() = 0;
  // This worker ends because of `why`; blocks until that is sent, or a second has passed.
  virtual void SendFailed(absl::Status why) = 0;

  // Ends the stream from this side. Does not block, and calls nobody back.
  virtual void Cancel(absl::Status reason) = 0;
  // As Cancel, but what was reported still goes out, and behind it that this worker ends because of `why`: what the daemon
  // cannot know by itself. The destructor waits for that.
  virtual void CancelAndSay(absl::Status why) = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_CONTROL_H_
