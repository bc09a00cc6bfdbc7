#ifndef EPS_SERVER_CHECKPOINT_CHECKPOINTER_H_
#define EPS_SERVER_CHECKPOINT_CHECKPOINTER_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/checkpoint/run_state.h"
#include "common/model/model_spec.h"
#include "common/spec/run_config.h"
#include "eps_server/store/store.h"

namespace eps {
class LongWork;
}  // namespace eps

namespace eps::server {

// Writes and loads checkpoints of one run in `directory` (DIR/checkpoints):
//
//   step-NNNNNNNN/model.safetensors      fp32 masters under their Hugging Face names; of frozen tensors the values
//                                        of the wire form, in a file of their own that the checkpoints share
//                                        (manifest.h)
//   step-NNNNNNNN/optimizer.safetensors  "exp_avg.<name>", "exp_avg_sq.<name>" (SGD: "momentum.<name>")
//   step-NNNNNNNN/config.json            the Hugging Face form of the model's family, so the folder loads there
//   step-NNNNNNNN/manifest.json          format, RunState, the RunConfig's text, sha256 and bytes of each file
//   latest                               the newest one's name
//
// A checkpoint is written into a folder of another name, synced, checked and renamed; `latest` is replaced
// after it. Older ones beyond `keep` are removed last, but for those of keep_every_steps. docs/formats.md describes
// every file.
//
// Threads: LatestPath is safe from any; the others one at a time
class Checkpointer {
 public:
  // Removes what a killed run left half written; makes nothing before the first Write. `claim`: whether the run still
  // has the folder; asked before each Write, whose error it becomes. Unset: it has.
  // Errors: the system's, naming the file · RESOURCE_EXHAUSTED no room for checkpoint.buffer_bytes
  static absl::StatusOr<std::unique_ptr<Checkpointer>> Create(std::string directory, const ModelSpec& model,
                                                              const RunConfig& run,
                                                              std::function<absl::Status()> claim = nullptr);
  virtual ~Checkpointer() = default;

  // How the blobs are taken out of the store.
  struct Capture {
    std::vector<BlobId> order;             // as they are updated next
    std::function<void(BlobId)> captured;  // the blob may be updated again
    // Somebody waits for `captured` of a blob, or for the end: asked from time to time, cheap. Unset: nobody ever does.
    std::function<bool()> is_awaited = nullptr;
    // The checkpoint is not wanted any more: asked from time to time, cheap. Unset: it is.
    std::function<bool()> is_cancelled = nullptr;
  };
  // Writes every blob at state.version. Before a blob is copied nothing is assumed but that it is at that version and
  // is not being updated. As much as CaptureBufferBytes is copied at once, before any file is touched; the rest as what
  // was copied is written, which takes its time unless it is awaited. Returns the checkpoint's path. One Write at a
  // time; blocks. After an error no blob is being read any more.
  // Errors: the system's, naming the file; what stood before still stands · CANCELLED the same · INVALID_ARGUMENT
  //         `order` does not have each blob once, or `state` is one that no run has
  virtual absl::StatusOr<std::string> Write(const Store& store, const RunState& state, const Capture& capture) = 0;

  // Loads the newest complete checkpoint into an empty store, with up to `threads` threads: masters, moments; publishes
  // nothing. `work` is told how far it is; null: nobody is.
  // Errors: NOT_FOUND there is none · FAILED_PRECONDITION of another run: names the fields that differ ·
  //         DATA_LOSS a checksum or size is wrong: names file and what to do · CANCELLED by `work`
  virtual absl::StatusOr<RunState> LoadLatest(Store& store, int threads = 1, LongWork* work = nullptr) = 0;

  // Of the newest that this object found or wrote; "" if there is none.
  virtual std::string LatestPath() const = 0;
};

// Whether adapters of a run may begin anew beside the weights of a folder that has none: those that a RunSpec asks for.
// Those that the folder had when the RunSpec was read may not.
enum class NewAdapters { kRefused, kTaken };

// Fills an empty store from a folder that ModelFolder takes, with up to `threads` threads: the same bits for any
// number. Everything but the values, which must be finite in the store's wire form, is checked before the first tensor
// is stored. `work` is told how far it is; null: nobody is.
//
// Memory: beside the store, 1 MiB of values in each thread, whatever the model; the files' pages are the system's
// Errors: NOT_FOUND, INVALID_ARGUMENT naming file, tensor, shape, dtype or value found and wanted · CANCELLED by `work`
absl::Status LoadHuggingFace(const std::string& folder, const ModelSpec& model, NewAdapters adapters, int threads,
                             Store& store, LongWork* work = nullptr);

// Fills an empty store with initial values (InitTensor), with up to `threads` threads: the same bits for any number.
// `work` as above. Errors: CANCELLED by `work`
absl::Status InitStore(const ModelSpec& model, int threads, Store& store, LongWork* work = nullptr);

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_CHECKPOINTER_H_
