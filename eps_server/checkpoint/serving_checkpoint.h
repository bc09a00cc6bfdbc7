#ifndef EPS_SERVER_CHECKPOINT_SERVING_CHECKPOINT_H_
#define EPS_SERVER_CHECKPOINT_SERVING_CHECKPOINT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/checkpoint/run_state.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/store/store.h"

namespace eps {
class LongWork;
}  // namespace eps

namespace eps::server {

// A checkpoint's model, ready to be pulled: `state.version` of every blob is published.
struct ServingCheckpoint {
  std::string folder;
  // The run that wrote it, with ServingOptions::overrides, as WithoutTraining makes it, and without dropout. Its text is
  // SerializeRunConfig(run). Of a Hugging Face folder: the model alone, bf16 on the wire where all of its tensors are
  // bf16, of which that loses nothing, else fp32; a GPU computes in the wire's dtype.
  RunConfig run;
  RunState state;
  ModelSpec model;
  std::unique_ptr<Store> store;
};

struct ServingOptions {
  int threads = 1;  // that load the weights
  // The context of the run, at most, where positions are no parameters of the model; 0: what the run or the folder has.
  int64_t max_context = 0;
  std::vector<FieldOverride> overrides;  // of precision.wire and precision.frozen
  LongWork* work = nullptr;              // is told how far it is; null: nobody is
};

// Loads the model of a checkpoint: a step-NNNNNNNN folder, a file `latest`, the folder that holds them
// (DIR/checkpoints), a run's DIR, or a Hugging Face folder. The sums of the files that are read are
// checked, the optimizer's state is not read. Changes nothing on disk, whoever writes there meanwhile.
//
// Errors: NOT_FOUND, saying what was looked for · DATA_LOSS naming the file, found and wanted ·
//         FAILED_PRECONDITION another format · INVALID_ARGUMENT a Hugging Face folder's, naming the tensor ·
//         RESOURCE_EXHAUSTED Store::Create's · INVALID_ARGUMENT --set and the field: an override of another field,
//         or WithOverrides'
absl::StatusOr<ServingCheckpoint> LoadCheckpointForServing(const std::string& path, const ServingOptions& options = {});

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_SERVING_CHECKPOINT_H_
