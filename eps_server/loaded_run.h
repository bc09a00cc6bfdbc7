#ifndef EPS_SERVER_LOADED_RUN_H_
#define EPS_SERVER_LOADED_RUN_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/base/long_work.h"
#include "common/checkpoint/model_source.h"
#include "common/model/model_spec.h"
#include "common/run_folder/run_folder.h"
#include "common/spec/run_config.h"
#include "eps_server/checkpoint/checkpointer.h"
#include "eps_server/daemon.h"
#include "eps_server/data/evaluation_data.h"
#include "eps_server/data/step_data.h"
#include "eps_server/memory/daemon_memory.h"
#include "eps_server/store/store.h"

namespace eps::server {

// A run that is trained, read and checked: new, or as its newest checkpoint has it; or one that is evaluated. Parts point
// to one another, so it stays where it was loaded.
struct LoadedRun {
  RunConfig config;
  std::string evaluated;  // whose weights are evaluated: a checkpoint's or a Hugging Face folder; "": it is trained
  std::optional<ModelSource> source;  // to be kept with the run; nullopt: it is there already
  ModelSpec model;
  std::unique_ptr<StepData> data;  // null: it is evaluated, on a file of its own
  std::unique_ptr<EvaluationData> evaluation_data;  // null: nothing is evaluated
  DaemonMemory memory;
  double floor_bytes_per_second = 0;  // of the memory, for one of the optimizer's threads; 0: not measured
  std::unique_ptr<Store> store;
  std::unique_ptr<Checkpointer> checkpointer;  // null: a new run, which has left nothing yet
  RunState state;
};

// What is quick: config and source. Changes nothing. Errors: Daemon::Create's
absl::Status ReadRun(const DaemonOptions& options, const RunFolder& folder, LoadedRun& run);
// The rest, which may take minutes: `work` is told how far it is. `folder` is there; nothing is left in it but tokens of
// data that has none yet. `claim`: its Checkpointer's. Errors: Daemon::Create's
absl::Status LoadRun(const DaemonOptions& options, const RunFolder& folder, std::function<absl::Status()> claim,
                     LongWork& work, LoadedRun& run);

}  // namespace eps::server

#endif  // EPS_SERVER_LOADED_RUN_H_
