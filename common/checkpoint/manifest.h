#ifndef EPS_COMMON_CHECKPOINT_MANIFEST_H_
#define EPS_COMMON_CHECKPOINT_MANIFEST_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/run_state.h"
#include "common/spec/run_config.h"

namespace eps {

// The files of a checkpoint's folder. The weights are one file; where tensors are frozen they are two and their index,
// as Hugging Face has them: those that train, and those that do not, whose file a run's checkpoints share
// (frozen_file.h).
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kTrainedFile[] = "model-00001-of-00002.safetensors";
inline constexpr char kFrozenFile[] = "model-00002-of-00002.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kManifestFile[] = "manifest.json";

// With its length: under -fsanitize=undefined g++ does not know at compile time that the name of an array is not null,
// which the other constructor asks.
template <size_t N>
constexpr absl::string_view NameOfFile(const char (&name)[N]) {
  return absl::string_view(name, N - 1);
}

// Those of which the manifest holds size and sum, and the same where frozen tensors have a file of their own.
inline constexpr std::array kSummedFiles = {NameOfFile(kConfigFile), NameOfFile(kModelFile),
                                            NameOfFile(kOptimizerFile)};
inline constexpr std::array kSummedFilesWithFrozen = {NameOfFile(kConfigFile), NameOfFile(kTrainedFile),
                                                      NameOfFile(kFrozenFile), NameOfFile(kIndexFile),
                                                      NameOfFile(kOptimizerFile)};

inline constexpr int64_t kManifestFormat = 8;
inline constexpr int64_t kFormatOfOneFile = 7;  // where all weights are in one file, for programs that know no other

// sha256 says whether a file is as it was written, the parts' CRC-32 (zlib's) where it is not.
inline constexpr int64_t kPartBytes = int64_t{1} << 20;
constexpr int64_t NumParts(int64_t num_bytes) { return num_bytes / kPartBytes + (num_bytes % kPartBytes != 0 ? 1 : 0); }

struct FileSum {
  int64_t num_bytes = 0;
  std::string sha256;               // 64 lower-case hexadecimal digits
  std::vector<uint32_t> part_crcs;  // one per kPartBytes begun; none in a manifest of format 1

  friend bool operator==(const FileSum&, const FileSum&) = default;
};

struct Manifest {
  RunConfig run;
  RunState state;
  std::map<std::string, FileSum> files;  // kSummedFiles, or kSummedFilesWithFrozen

  bool has_frozen_file() const { return files.contains(kFrozenFile); }
};

// manifest.json, a JSON object with these members in this order:
//
//   "format"          8, with kSummedFilesWithFrozen; 7, with kSummedFiles
//   "step"            steps done, which is the version of every blob
//   "run"             SerializeRunConfig's text
//   "files"           {"config.json": {"bytes": N, "sha256": "...", "crc32_per_mib": "..."}, ...}
//   "data_position"   samples consumed: step * sequences per step
//   "data"            {"bytes": N, "sha256": "..."}, RunState's; a sum of "" is not known
//   "choices"         {"DEVICE MODEL": {"KEY": "VALUE", ...}, ...}, RunState's
//   "device_models"   ["DEVICE MODEL", ...], rising, RunState's
//   "loss_scale"      {"value": 65536.0, "finite_steps": N}, RunState's
//   "updates"         {"BLOB": N, ...}, RunState's
//   "tokens", "skipped_steps", "train_seconds", "last_norm", "losses", "gradient_norms"   RunState's
//   "sha256"          of every byte of this file before the line of this member
//
// Numbers have the digits that give the same double again. A loss that is not finite, as of a step that counted no
// token or went wrong, is the string "NaN", "Infinity" or "-Infinity". crc32_per_mib: 8 hexadecimal digits for each
// part.
std::string ManifestToJson(const Manifest& manifest);

// Trusts no byte: every member is there and known, of its type, within its range, and fits the others. Formats 1, which
// has no crc32_per_mib, 2, which has no "data", 3, which has no "choices", 4, which has no "loss_scale", 5, which has
// no "updates", and 6, which has no "device_models", are read too.
//
// Errors: DATA_LOSS naming the field, found and wanted · FAILED_PRECONDITION another format
absl::StatusOr<Manifest> ParseManifest(const std::string& text);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_MANIFEST_H_
