#ifndef EPS_COMMON_CHECKPOINT_CHECKPOINT_FILES_H_
#define EPS_COMMON_CHECKPOINT_CHECKPOINT_FILES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/sha256.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/manifest.h"

// Finding a checkpoint, and trusting its files. Nothing here writes. docs/formats.md, Checkpoints.
namespace eps {

class LongWork;

// Bytes, sha256 and the parts' CRC-32 of a regular file, which is read once, part by part.
class FileSummer {
 public:
  // Errors: DATA_LOSS there is none · the system's
  static absl::StatusOr<FileSummer> Open(std::string path);
  // Reads a part. False: there was none left. Errors: the system's
  absl::StatusOr<bool> SumPart();
  // Of what was read. Ends the object's use.
  FileSum Finish();

 private:
  FileSummer(std::string path, FileDescriptor file);

  std::string path_;
  FileDescriptor file_;
  FileSum sum_;
  Sha256 hash_;
  std::vector<std::byte> buffer_;
};

// All of it. Errors: FileSummer's
absl::StatusOr<FileSum> SumFile(const std::string& path);

// Errors: DATA_LOSS naming file and field · FAILED_PRECONDITION another format · the system's
absl::StatusOr<Manifest> ReadManifest(const std::string& folder);

// Every file of the manifest is there with its size: cheap.
// Errors: DATA_LOSS naming the file, found and wanted
absl::Status CheckSizes(const std::string& folder, const Manifest& manifest);
// Which of a manifest's files.
enum class CheckedFiles {
  kAll,
  kWeights,  // what a model's weights are read from, with nothing of its training
};

// `files` are as the manifest says, byte for byte: reads them whole, each on a thread of its own, which `work` is told
// of; null: nobody is.
// Errors: DATA_LOSS naming the file, found and wanted, and which bytes are damaged · CANCELLED by `work` · the system's
absl::Status CheckSums(const std::string& folder, const Manifest& manifest, CheckedFiles files,
                       LongWork* work = nullptr);
// Whether the folder's config.json has the attention of the manifest's model. Earlier versions wrote that of another
// one for mixes of the Llama family's parts: who reads the folder as a model, and not by its manifest, asks.
// Errors: FAILED_PRECONDITION naming the file, and what to do · ModelConfigFromJson's
absl::Status CheckConfig(const std::string& folder, const Manifest& manifest);
// ReadManifest and CheckSizes: what can be told without reading the tensors.
absl::Status CheckComplete(const std::string& folder);

// Whether `folder` is, or was, a checkpoint of a run and no Hugging Face folder: it has a manifest or a step's name.
// One that lost its manifest is damaged; it must not pass as somebody's Hugging Face folder.
bool IsStepFolder(const std::string& folder);

// Compares a step folder with its manifest: the manifest itself, the size of every file, then the sums of `files`; and
// for kWeights CheckConfig too, as the folder is then read as a model. OK for another folder, which has
// nothing to be compared with.
// Errors: those of ReadManifest, CheckSizes, CheckSums and CheckConfig; DATA_LOSS says what to do · NOT_FOUND the
//         folder is gone
absl::Status VerifyCheckpointFolder(const std::string& folder, CheckedFiles files = CheckedFiles::kAll);

// What `latest` names, in whatever state it is; without a useful `latest` the newest complete one; if none is complete
// the newest, whose damage is what there is to report.
// Errors: NOT_FOUND there is none · the system's
absl::StatusOr<Version> FindNewestCheckpoint(const CheckpointDirectory& directory);

// The folder that `path` means. A step-NNNNNNNN folder and a Hugging Face folder (config.json) stand for themselves; a
// run's DIR, its DIR/checkpoints and the file DIR/checkpoints/latest for the newest checkpoint there. What is found may
// be damaged. A `latest` can only name a step folder that lies beside it.
// Errors: NOT_FOUND, saying what was looked for · INVALID_ARGUMENT another file · the system's
absl::StatusOr<std::string> FindCheckpointFolder(const std::string& path);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_CHECKPOINT_FILES_H_
