#ifndef EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/checkpoint/manifest.h"
#include "eps_server/checkpoint/run_state.h"
#include "eps_server/store/store.h"

namespace eps::server {

// One checkpoint's folder: what it takes to write it whole, and to trust it when it is read.
// Memory: one chunk (1 MiB), whatever the model

// Writes the four files into the empty folder `folder`, synced, and reads back what must hold. Of `order`
// and `captured`: Checkpointer::Write.
// Errors: the system's, naming the file · DATA_LOSS what was read back is not what was written ·
//         INVALID_ARGUMENT a run or state that no reader would take
absl::Status WriteCheckpointFolder(const std::string& folder, const Store& store, const ModelSpec& model,
                                   const RunConfig& run, const RunState& state,
                                   const std::vector<BlobId>& order,
                                   const std::function<void(BlobId)>& captured);

// Errors: DATA_LOSS naming the file · FAILED_PRECONDITION another format · the system's
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// Every file of the manifest is there with its size: cheap.
// Errors: DATA_LOSS naming the file, found and wanted
absl::Status CheckSizes(const std::string& folder, const Manifest& manifest);
// As the manifest says, byte for byte, of those files.
absl::Status CheckSums(const std::string& folder, const Manifest& manifest,
                       absl::Span<const absl::string_view> files);

// Fills an empty store with masters and moments, or with masters alone, at the manifest's step. The files are
// checked to hold exactly the model's tensors before the first one is stored; their sums are CheckSums' matter.
// Errors: DATA_LOSS naming file and tensor
enum class LoadWhat { kMastersAndMoments, kMasters };
absl::Status LoadTensors(const std::string& folder, const ModelSpec& model, const Manifest& manifest,
                         LoadWhat what, Store& store);

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_
