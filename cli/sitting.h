#ifndef EPS_CLI_SITTING_H_
#define EPS_CLI_SITTING_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/common_flags.h"
#include "cli/daemon_client.h"
#include "cli/order_follower.h"
#include "cli/signal_queue.h"
#include "cli/worker_replacements.h"
#include "common/base/end_signals.h"
#include "common/grpc/doors.h"
#include "proto/control.pb.h"

namespace eps::cli {

struct SittingOptions {
  std::vector<std::string> run_arguments;  // the daemon's, which say what it carries out: --run FILE, or --evaluate DIR
  WorkerFlags worker;
  int workers = 1;
  int threads = 1;                            // of each worker, where `worker` says none
  std::string programs;                       // the folder of eps_server and gpu_worker
  std::string out;                            // the run's folder; OUT/logs is there
  bool out_is_new = false;                    // it was not there before: of a run that is refused it goes again
  std::vector<std::string> daemon_arguments;  // beside those that every sitting needs
  bool forward_digests = false;               // each worker writes ForwardDigestFile
  bool trace = false;                         // all write TraceLogFiles, whose folder is there
  bool end_at_once = false;                   // by the first signal, not by the second
  bool follows_orders = false;                // starts more workers when the daemon is asked for them
  int restarts = 0;                           // how many workers it may start in place of some that crashed
  bool is_restart = false;                    // goes on where one before it crashed

  std::function<void(const proto::StatusReply&)> show;  // how far it is, several times a second
  std::function<void(const std::string&)> note;         // something happened; a line for people
};

struct SittingEnd {
  int exit_code = 0;                // as `eps train` ends
  std::vector<std::string> errors;  // why, a line each, for people; where the exit code is not 0
  std::string standing;             // and where the run stands, a line; "": it was not begun, or `errors` say it
  std::vector<int> too_small;       // workers, as WorkerLogFile counts them, that said so of their devices
  int workers = 0;                  // that were started
  int restarts = 0;                 // of these, in place of others
  int workers_wanted = 0;           // as last asked for, by eps resize and eps drain too
  bool may_go_on = false;           // the daemon crashed, or a step was lost: a resume may go on
};

// Where worker `worker`, from 1, of a sitting in `out` logs.
std::string WorkerLogFile(const std::string& out, int worker);

// Where worker `worker`, from 1, of a sitting in `out` writes its digests of the forward pass, where it is asked to.
std::string ForwardDigestFile(const std::string& out, int worker);

// Where those of a sitting in `out` that is traced write what they do (TraceLog): each worker, then the daemon.
std::vector<std::string> TraceLogFiles(const std::string& out, int workers);
// Those of one worker, and of the daemon.
std::string WorkerTraceLogFile(const std::string& out, int worker);
std::string DaemonTraceLogFile(const std::string& out);

// One sitting of a run: starts a daemon and workers as processes, watches them until the daemon has ended, and says
// how. No process is left when it is destroyed.
//
// Threads: one
class Sitting {
 public:
  // `signals` outlives the sitting.
  Sitting(SittingOptions options, SignalQueue* signals);
  ~Sitting() { EndChildren(); }
  Sitting(const Sitting&) = delete;
  Sitting& operator=(const Sitting&) = delete;

  // Once.
  SittingEnd Run();

 private:
  struct Worker {
    ChildProcess process;
    int place = 0;              // from 0; no two that run have the same
    bool was_killed = false;    // by this sitting
    bool end_is_said = false;   // for people
    int64_t order = 0;          // that it was started for; 0: it is here from the beginning
    bool replaces_one = false;  // that crashed
    bool was_ready = false;     // the daemon has said so
    bool was_let_go = false;    // it ended well while the run went on
    bool never_computed() const { return (order > 0 || replaces_one) && !was_ready; }
    // Of one that replaces another: else the sitting ended before it was of use.
    bool counts_as_restart() const { return replaces_one && (was_ready || end_is_said); }
  };

  SittingEnd RunAll();
  absl::Status StartDaemon();
  // Until workers may attach; shows what the daemon does meanwhile. False when it ended first.
  // Errors: CANCELLED a signal came: there is no step to finish yet
  absl::StatusOr<bool> WaitUntilListening();
  void ShowStart();
  // Where people can look on, once.
  void SayPage(const std::string& page);
  // One more, by `flags`, in the first place that is free.
  absl::Status StartWorker(const WorkerFlags& flags);
  std::vector<std::string> WorkerArguments(const WorkerFlags& flags, int worker, int place) const;
  // What the daemon is asked for by eps resize.
  void FollowOrders(const proto::StatusReply& status);
  SittingEnd Watch();
  void ReapAll();
  void NoteReadyWorkers(const proto::StatusReply& status);
  void NoteDeadWorkers();
  void NoteWorkersLetGo();
  void GiveUpOrder(const std::string& why);
  // Whether nobody is left who could finish the step, nor anything that ends the daemon but a signal.
  bool IsNobodyLeft(const absl::StatusOr<proto::StatusReply>& status);
  // Whether another one may do better in its place.
  static bool HasCrashed(const Worker& worker);
  void ReplaceWorker();
  // Of those that have ended: what counts for how the sitting ended.
  std::vector<const Worker*> WorkersThatCount() const;
  std::vector<int> TooSmall() const;  // SittingEnd's
  int NumRunning() const;
  void PassOn(int number);
  SittingEnd DaemonEnded();
  void RemoveNewFolder();  // of a run that was not begun
  void WaitForWorkers();
  void AbortDaemon();
  void EndStart();
  bool AnyRunning() const;
  bool is_interrupted() const { return end_signals_.first() != 0; }
  void EndChildren();

  const SittingOptions options_;
  SignalQueue& signals_;
  std::string address_;                     // "": workers may not attach yet
  std::unique_ptr<DaemonClient> starting_;  // of the daemon, while it loads; null: it does not listen yet
  std::optional<DaemonClient> client_;      // of the daemon, while it is watched
  bool page_is_said_ = false;
  ClientDoors doors_;
  ChildProcess daemon_;
  std::vector<Worker> workers_;  // worker i + 1
  OrderFollower orders_;
  WorkerReplacements replacements_;
  int workers_wanted_;  // SittingEnd's
  int64_t newest_order_ = 0;
  std::optional<absl::Duration> alone_since_;  // since when the daemon, without workers, may be ending by itself
  bool none_left_ = false;                     // the last worker has died
  bool gave_up_ = false;                       // and the daemon was told to end for that, and for no signal
  EndSignals end_signals_;
  bool at_once_ = false;  // children were ended before they could end by themselves
};

}  // namespace eps::cli

#endif  // EPS_CLI_SITTING_H_
