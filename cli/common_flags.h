#ifndef EPS_CLI_COMMON_FLAGS_H_
#define EPS_CLI_COMMON_FLAGS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/memory_room.h"
#include "common/spec/run_config.h"
#include "common/spec/vector_width.h"
#include "gpu_worker/profile/kept_profile.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace eps::cli {

// What names a run: its RunSpec and what overrides it.
struct RunFlags {
  std::string run;
  std::vector<std::string> set;
  int64_t steps = 0;  // 0: the RunSpec's

  CLI::Option* AddTo(CLI::App& command);  // returns --run, which is required
  // --set alone, where --run is an option of its own.
  CLI::Option* AddSetTo(CLI::App& command);
  // Errors: LoadRunConfig's, and INVALID_ARGUMENT for a --set without "="
  absl::StatusOr<RunConfig> Load() const;
  // What --set and --steps say. Errors: INVALID_ARGUMENT for a --set without "="
  absl::StatusOr<std::vector<FieldOverride>> Overrides() const;
  // The same flags for another program.
  std::vector<std::string> ToArguments() const;
};

// What a worker computes with.
struct WorkerFlags {
  std::string device = "cpu";
  int64_t device_memory_bytes = 0;       // 0: not given
  int64_t host_memory_bytes = 0;         // of each worker, for activations; 0: not given
  int threads = 0;                       // 0: not given
  std::string vectors = kWidestVectors;  // of kVectorWidths
  std::string profile;                   // what --profile says, or by SetDefaultProfile what it stands for
  int workers = 1;                       // that compute with these; set by SetDefaultMemory
  bool memory_is_default = false;        // set by SetDefaultMemory
  bool profile_is_default = false;       // set by SetDefaultProfile

  void AddTo(CLI::App& command);
  // The cap of each of `num_workers` workers where none was given, so that all that plan with it, before and after the
  // start, plan with the same, and together for no more than there is. A GPU's memory only the worker can see.
  void SetDefaultMemory(const MemoryRoom& room, int num_workers);
  // The profile that is kept of workers with so many threads, where none was given and one is there: the same for all
  // that plan, before and after the start.
  void SetDefaultProfile(int threads_per_worker);

  // The same for one more beside `others` that are there: what was not given of threads, cap and profile is as for a
  // run that has one more.
  WorkerFlags ForOneMore(const MemoryRoom& room, int others) const;

  // The same where so many compute in place of `workers`: what was not given is as for so many, and no larger than it was.
  WorkerFlags ForSoMany(const MemoryRoom& room, int num_workers) const;

  // The own flags of worker `turn`, from 0, for the daemon at `address`, with `threads` where none were given.
  std::vector<std::string> ToArguments(const std::string& address, int default_threads, int turn) const;
};

void AddHostMemoryTo(CLI::App& command, int64_t& host_memory_bytes);
void AddVectorsTo(CLI::App& command, std::string& vectors);
void AddProfileTo(CLI::App& command, std::string& profile);
// What --profile, or SetDefaultProfile, has chosen.
using worker::LoadProfile;

// Prints "eps: MESSAGE" to stderr.
void PrintError(const absl::Status& status);

// The exit code of a command that ended with `status`; prints an error that it is.
int ReportStart(const absl::Status& status);

}  // namespace eps::cli

#endif  // EPS_CLI_COMMON_FLAGS_H_
