#ifndef EPS_CLI_RUN_REPORT_H_
#define EPS_CLI_RUN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/numeric/quantized.h"

namespace eps::cli {

// What `eps train` knows of a run before it starts anything.
struct RunOutline {
  int64_t parameters = 0;
  int64_t trainable_parameters = 0;              // of these
  std::optional<QuantizedFormat> frozen_format;  // ModelConfig::frozen_format
  int64_t model_state_bytes = 0;
  int64_t steps = 0;
  int64_t virtual_nodes = 0;  // of a step
  int64_t tokens_per_step = 0;
  int64_t samples_per_step = 0;
  int64_t samples = 0;           // of context + 1 tokens, in the data
  int64_t sources = 1;           // of data
  int64_t checkpoint_bytes = 0;  // of the next one on disk; 0: it is to leave none
};

// How `eps train` was asked to start it.
struct StartOptions {
  int workers = 1;
  std::string device;
  int threads = 1;                  // of each worker
  int64_t device_memory_bytes = 0;  // 0: none given
  std::string out;
  std::string resumes_from;  // name of a checkpoint's folder; "" for a run from its start
};
// Two lines: what is trained on what, and where.
//   10.8 M parameters, of which 41.9 K train, 143.8 MiB of state; 360 steps of 1024 tokens; 67562 samples, 0.1 epochs
//   2 workers (cpu, 1 thread each, at most 34.0 MiB); in out/quickstart/run, from step-00000100
std::string StartText(const RunOutline& outline, const StartOptions& options);

// How the run in folder `out` ended, from its summary.json, in a line or two; "" when there is none that can be read.
//   done: 400 steps in 8.5 s, loss 5.517 -> 2.324, 24066 tokens/s, device 1.9 MiB of 2.0 MiB; summary.json, loss.svg
//   and checkpoints are in out/tiny
// A run that was stopped says so, and how to go on.
std::string EndText(const std::string& out);

// What somebody should know who takes the model of that run, for people: steps that were skipped, by the gradient or by
// FP16's loss scale, a last loss that is not finite, or that there is none as no token was counted.
std::vector<std::string> EndWarnings(const std::string& out);

// Whether the run in `out` has failed, by what its daemon left there (RunFolder::failure), and nobody has gone on with it
// since.
bool HasFailed(const std::string& out);

// Whether the run in `out` has done all of its steps, by its summary.json, and how many steps it says were done.
bool IsFinished(const std::string& out);
int64_t StepsDone(const std::string& out);  // 0: there is no summary

// Where the run in `out` stands that has done all of its steps, by its summary.json, for people in a line, or as JSON
// with the fields of proto/control.proto's StatusReply that are known of it; "" of any other run.
//   the run in out/tiny has ended: 400 of 400 steps were done, loss 2.324; the newest checkpoint is
//   out/tiny/checkpoints/...
std::string FinishedText(const std::string& out);
std::string FinishedJson(const std::string& out);

// Why nobody answers for the run in `out`, and where it stands: by its summary.json, or by the last line of its
// metrics.jsonl where that is further, as of a run that was killed. Of one that has failed, why.
std::string NotRunningText(const std::string& out);
// The same as JSON, as FinishedJson, its state "finished", "failed" (with `failure`) or "not_running"; what is not known
// of it is left out. "": nothing is.
std::string NotRunningJson(const std::string& out);

// "the newest checkpoint is OUT/checkpoints/step-00000040; go on with --resume", or that there is none. Of a run that has
// diverged, which would do so again: that eps branch goes on.
std::string NewestCheckpointText(const std::string& out);

}  // namespace eps::cli

#endif  // EPS_CLI_RUN_REPORT_H_
