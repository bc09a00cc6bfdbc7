#ifndef EPS_SERVER_DAEMON_H_
#define EPS_SERVER_DAEMON_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/long_work.h"
#include "common/grpc/doors.h"
#include "common/spec/run_config.h"
#include "eps_server/telemetry/daemon_page.h"

namespace eps::server {

struct DaemonOptions {
  std::string run_file;                              // a RunSpec: train it
  std::vector<FieldOverride> overrides;              // of its fields
  bool resume = false;                               // go on from the newest checkpoint in `out`
  std::optional<int64_t> most_steps = std::nullopt;  // end after so many of the run's steps, as if a signal had come
  std::string digest_file;                           // DigestLog's; "": none is kept
  bool tensorboard = false;                          // keep event files of what it trains in `out`
  std::string trace_file;                            // of what it does and when, while it trains; "": none is kept
  std::string evaluate_folder;  // or a checkpoint or Hugging Face folder: evaluate it, by these overrides
  std::string serve_folder;     // or a checkpoint or Hugging Face folder: serve it, by these overrides
  int64_t serve_context = 0;    // tokens of a text that it is planned for, at most; 0: the model's
  std::string out;              // where everything is left
  std::string listen = "127.0.0.1:0";
  ServerDoors doors;                           // of that address
  std::string metrics_listen = "127.0.0.1:0";  // the HTTP page
  bool metrics_any_address = false;            // it may be an address that other hosts reach
  int max_connections = 0;                     // 0: 1024, or 8 for each expected worker if that is more
  int expected_workers = 1;                    // the first step waits until so many are ready
  int threads = 1;                             // of the optimizer, and of loading; CopierThreads of them for a worker
  int64_t window_bytes = 0;                    // of contributions; 0: the run's default
  absl::Duration lease = absl::Seconds(10);
  absl::Duration linger = absl::ZeroDuration();  // that the HTTP page is served after the run has ended

  bool evaluates() const { return !evaluate_folder.empty(); }
};

// The daemon: a model in memory, and the services through which workers and people reach it.
//
// Threads: Wait from one; Stop and Abort from any
class Daemon {
 public:
  // Checks everything that can be wrong with the input (listen address, RunSpec, data, weights, checkpoints) and loads
  // the model, which may take minutes: it listens and answers all that while, and `work` is told how far it is, which must
  // live until Start has succeeded or the daemon is gone. After an error nothing has changed, but for tokens of data that
  // were made whole.
  // Errors: INVALID_ARGUMENT, NOT_FOUND, FAILED_PRECONDITION, DATA_LOSS, naming the field, file or address ·
  //         RESOURCE_EXHAUSTED · CANCELLED by `work`
  static absl::StatusOr<std::unique_ptr<Daemon>> Create(const DaemonOptions& options, LongWork& work);
  virtual ~Daemon() = default;

  // True if there is nothing to do: the run was resumed and is done.
  virtual bool finished_before() const { return false; }

  // Lets workers attach, and writes OUT/endpoints.json. Errors: the system's, naming the file
  virtual absl::Status Start() = 0;

  // Blocks until the run is over (or, while serving, until Stop), and leaves its reports in OUT.
  // Errors: ABORTED a lost worker cost the step (precision.wire_versions), and --resume goes on · OUT_OF_RANGE it diverged,
  // and would with --resume, too (optimizer/divergence.h) · else why the run failed.
  // Each says which checkpoint stands
  virtual absl::Status Wait() = 0;
  // True if the run was ended before its last step; after Wait.
  virtual bool stopped_early() const { return false; }
  // After a Wait that failed: leaves why in OUT, for who looks when the daemon is gone; not of a step that was lost, nor of
  // an end that was asked for. May hang where its disk does.
  virtual void KeepFailure() {}
  // The HTTP page, which goes on to show how it `ended` when the daemon is gone; once, after Wait.
  virtual std::unique_ptr<DaemonPage> TakePage(const absl::Status& ended) = 0;

  // Lets the step in progress finish, with a checkpoint.
  virtual void Stop(const std::string& reason) = 0;
  // Ends at once, as failed.
  virtual void Abort(absl::Status why) = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_DAEMON_H_
