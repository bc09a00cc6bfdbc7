#ifndef EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_
#define EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/checkpoint/frozen_file.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/run_state.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/checkpoint/patient_thread.h"
#include "eps_server/checkpoint/state_capture.h"
#include "eps_server/store/store.h"

namespace eps {
class LongWork;
}  // namespace eps

namespace eps::server {

// One checkpoint's folder, from a store and into one. common/checkpoint/checkpoint_files.h checks its files.

// Writes a checkpoint's files into the empty folder `folder`, synced; every file has the size that it must have, and
// the sums in the manifest are of what is read back, but for a linked file's, which is the one that it was linked by.
// Takes every chunk of `capture`, which is made for state.version. `before`, of an earlier checkpoint of the run, is
// linked where it can be, instead of being written again. Returns the folder's own, by its name in `folder`; nothing
// where none is frozen, or no other checkpoint could link it. What needs a core or the disk goes through `patient`,
// piece by piece.
// Memory: of the system, at most 2 * 32 MiB that wait for the disk as long as nobody waits for `patient`; of this
//         process, a part that is read back (1 MiB) and the manifest
// Errors: the system's, naming the file · CANCELLED as `patient` says · DATA_LOSS a file is shorter than what was
//         written · INVALID_ARGUMENT a run or state that no reader would take
absl::StatusOr<std::optional<SummedFrozenFile>> WriteCheckpointFolder(const std::string& folder, StateCapture& capture,
                                                                      const ModelSpec& model, const RunConfig& run,
                                                                      const RunState& state,
                                                                      const std::optional<SummedFrozenFile>& before,
                                                                      PatientThread& patient);

// The manifest of a checkpoint whose weights are whole, byte for byte; its moments are not looked at. `work` as below.
// Errors: ReadManifest's, CheckSizes', CheckSums'
absl::StatusOr<Manifest> ReadManifestOfWholeWeights(const std::string& folder, LongWork* work);

// Fills an empty store with masters and moments, or with masters alone, at the manifest's step. Of a store for masters
// alone other tensors may be frozen than the run's. The files are checked to hold exactly the model's tensors before
// the first one is stored; their sums are CheckSums' matter. With up to `threads` threads: the same bits for any
// number. `work` is told how far it is; null: nobody is.
// Errors: DATA_LOSS naming file and tensor · CANCELLED by `work`
enum class LoadWhat { kMastersAndMoments, kMasters };
absl::Status LoadTensors(const std::string& folder, const ModelSpec& model, const Manifest& manifest, LoadWhat what,
                         int threads, Store& store, LongWork* work = nullptr);

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_CHECKPOINT_FOLDER_H_
