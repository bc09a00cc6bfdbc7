#ifndef EPS_SERVER_MEMBERSHIP_MEMBERSHIP_H_
#define EPS_SERVER_MEMBERSHIP_MEMBERSHIP_H_

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/vnode_batch.h"
#include "eps_server/membership/groups.h"

namespace eps::server {

// What a worker says of itself when it attaches.
struct WorkerInfo {
  std::string device_name;       // "cpu", "cuda:0"; at most 64 bytes
  std::string device_model;      // what its bits depend on; 1 to 256 bytes of printable ASCII
  int64_t device_cap_bytes = 0;  // > 0
  int64_t process_id = 0;
  int threads = 0;
  std::string metrics_address = "";  // of its HTTP page, HOST:PORT in numbers; at most 256 bytes; "": not told
  std::string host_name = "";        // at most 64 bytes
};

// Errors: INVALID_ARGUMENT naming the field
absl::Status CheckWorkerInfo(const WorkerInfo& info);

// The log's line of one that has attached.
void LogAttached(WorkerId worker, const WorkerInfo& info);

// How many may be attached at once: far more than a run has vnodes for, and a bound on what strangers can make of it.
inline constexpr size_t kMaxWorkers = 4096;

// What its plan uses, and how it is reached.
struct WorkerMemory {
  int64_t device_arena_bytes = 0;
  int64_t device_outside_bytes = 0;  // libraries' own; of the newest pass, once there is one
  int64_t host_bytes = 0;
  std::string transport;        // of weights and gradients: "grpc" or "shared_memory"
  std::string group_kind = "";  // Groups::Candidate::kind
  // Of a step in which this worker has every vnode, by its plan; 0: nothing was measured.
  double predicted_step_seconds = 0;
};

// Where the time of a pass went.
struct PassTiming {
  double seconds = 0;
  std::map<std::string, double> wait_seconds;  // compute's, by cause (kWaitCauses)
  int64_t device_peak_bytes = 0;               // so far
  int64_t device_outside_bytes = 0;            // WorkerMemory's, now

  // Without those in which other workers, or the daemon, kept it waiting.
  double OwnSeconds() const {
    double own = seconds;
    for (const char* cause : {"version", "room"}) {
      if (const auto waited = wait_seconds.find(cause); waited != wait_seconds.end()) own -= waited->second;
    }
    return std::max(0.0, own);  // they were measured by another clock
  }
};

// What a worker that is not wanted any more is told: it exits, with 0 if `ok`.
struct FinishNotice {
  bool ok = false;
  std::string reason;
  bool run_may_go_on = false;  // not done: this daemon was stopped, or has lost a step, and may be started again
};

// The way to a worker. Methods never block and may be called after the stream has ended.
class WorkerChannel {
 public:
  virtual ~WorkerChannel() = default;
  virtual void SendAssignment(std::shared_ptr<const Assignment> assignment) = 0;
  virtual void SendGroupOrder(const GroupOrder& order) = 0;
  virtual void SendFinish(FinishNotice notice) = 0;
  // Ends the stream with an error: what the worker said makes no sense, or it is not known any more. It may attach anew.
  virtual void Close(absl::Status why) = 0;
};

enum class WorkerState { kAttaching, kIdle, kRunning, kLeaving, kLost, kLeft };
// It takes no part any more, and is listed so that one sees how it went.
constexpr bool IsGone(WorkerState state) { return state == WorkerState::kLost || state == WorkerState::kLeft; }
absl::string_view WorkerStateName(WorkerState state);  // "attaching", ... as in WorkerStatus.state

struct WorkerStatus {
  WorkerId id;
  WorkerInfo info;
  WorkerState state = WorkerState::kAttaching;
  std::vector<int> vnodes;  // of the current step
  WorkerMemory memory;
  PassTiming last_pass;
  absl::Duration silent_for;  // since its last sign of life; of one that is gone: zero
  int group_members = 0;      // of the group that it is in, if that has formed; 0: of none
  WorkerId group_founder;
};

// Who takes part: leases and the list of the ready. Decides nothing about steps.
//
// Threads: none of its own; the owner guards it.
class Membership {
 public:
  explicit Membership(absl::Duration lease) : lease_(lease) {}

  // Errors: CheckWorkerInfo's · UNAVAILABLE kMaxWorkers are attached
  absl::StatusOr<WorkerId> Attach(WorkerInfo info, absl::Duration now);
  absl::Status Connect(WorkerId worker, std::shared_ptr<WorkerChannel> channel, absl::Duration now);
  // Any sign of life. Errors: NOT_FOUND
  absl::Status Renew(WorkerId worker, absl::Duration now);
  // Returns whether it was not ready before.
  absl::StatusOr<bool> Ready(WorkerId worker, WorkerMemory memory, absl::Duration now);
  absl::Status RecordPass(WorkerId worker, PassTiming timing, absl::Duration now);
  // It wants to go: it stays until Remove, and is given nothing new. Returns whether it was not leaving before.
  absl::StatusOr<bool> Leave(WorkerId worker, absl::Duration now);

  // The same of several, whom somebody else wants to go: all, or none if it fails.
  // Returns those that were not leaving before.
  // Errors: NOT_FOUND one of them · FAILED_PRECONDITION one of them is not ready yet; no other is ready and stays
  absl::StatusOr<std::vector<WorkerId>> Drain(absl::Span<const WorkerId> workers);
  // Of one that is leaving: nobody needs it any more, and it was told so. It counts for nothing, and is known, so that what
  // it still says is no error, until Remove.
  void LetGo(WorkerId worker);
  bool IsLetGo(WorkerId worker) const;

  // Forgets a worker; its channel is returned (null: unknown, or it never connected). It is listed for a while as
  // `gone_as`, which IsGone, unless it was let go.
  std::shared_ptr<WorkerChannel> Remove(WorkerId worker, WorkerState gone_as = WorkerState::kLost);
  bool Contains(WorkerId worker) const { return workers_.count(worker) > 0; }
  const std::string& DeviceModel(WorkerId worker) const;  // of one that is known

  // What a worker who takes part computes with if it is not `device_model`; "" if there is none.
  std::string OtherDeviceModel(absl::string_view device_model) const;

  // Those whose lease has run out.
  std::vector<WorkerId> Expired(absl::Duration now) const;
  // Connected, ready, and not about to leave, by rising id.
  std::vector<WorkerId> ReadyWorkers() const;
  std::vector<WorkerId> LeavingWorkers() const;  // and not let go
  // Who gets what is left of a step or round: the ready ones; where none is, those that are about to leave, as long as they
  // are needed.
  std::vector<WorkerId> WorkersForTheRest() const;
  int num_ready() const;  // those that are about to leave too
  // The same, as Groups::Arrange takes them.
  std::vector<Groups::Candidate> GroupCandidates() const;
  int64_t largest_cap_bytes() const { return largest_cap_bytes_; }  // of all that ever were ready
  int num_alive() const;                                            // attaching ones too
  std::shared_ptr<WorkerChannel> channel(WorkerId worker) const;
  std::vector<std::shared_ptr<WorkerChannel>> Channels() const;

  // kIdle or kRunning by what the caller knows; vnodes too.
  std::vector<WorkerStatus> List(absl::Duration now) const;

 private:
  struct Worker {
    WorkerStatus status;
    bool ready = false;
    bool let_go = false;
    std::shared_ptr<WorkerChannel> channel;
    absl::Duration deadline;
    bool is_leaving() const { return status.state == WorkerState::kLeaving; }
    bool may_be_given_work() const { return ready && !is_leaving(); }
  };
  absl::StatusOr<Worker*> Find(WorkerId worker, absl::Duration now);

  absl::Duration lease_;
  std::map<WorkerId, Worker> workers_;
  std::deque<WorkerStatus> gone_;  // newest last, at most kMaxGone
  int64_t next_id_ = 1;
  int64_t largest_cap_bytes_ = 0;
};

// vnodes cut into contiguous ranges: worker i of W gets [i * n / W, (i + 1) * n / W) of the n.
std::vector<std::vector<int>> SplitVnodes(absl::Span<const int> vnodes, int num_workers);

}  // namespace eps::server

#endif  // EPS_SERVER_MEMBERSHIP_MEMBERSHIP_H_
