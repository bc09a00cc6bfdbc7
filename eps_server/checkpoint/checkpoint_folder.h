#ifndef EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/base/ids.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/run_state.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/store/store.h"

namespace eps::server {

// One checkpoint's folder, from a store and into one. common/checkpoint/checkpoint_files.h checks its files.
// Memory: one chunk (1 MiB), whatever the model

// Writes the four files into the empty folder `folder`, synced, and reads back what must hold. Of `order`
// and `captured`: Checkpointer::Write.
// Errors: the system's, naming the file · DATA_LOSS what was read back is not what was written ·
//         INVALID_ARGUMENT a run or state that no reader would take
absl::Status WriteCheckpointFolder(const std::string& folder, const Store& store, const ModelSpec& model,
                                   const RunConfig& run, const RunState& state, const std::vector<BlobId>& order,
                                   const std::function<void(BlobId)>& captured);

// Fills an empty store with masters and moments, or with masters alone, at the manifest's step. The files are
// checked to hold exactly the model's tensors before the first one is stored; their sums are CheckSums' matter.
// Errors: DATA_LOSS naming file and tensor
enum class LoadWhat { kMastersAndMoments, kMasters };
absl::Status LoadTensors(const std::string& folder, const ModelSpec& model, const Manifest& manifest, LoadWhat what,
                         Store& store);

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_
