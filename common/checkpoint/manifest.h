#ifndef EPS_COMMON_CHECKPOINT_MANIFEST_H_
#define EPS_COMMON_CHECKPOINT_MANIFEST_H_

#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/checkpoint/run_state.h"
#include "common/spec/run_config.h"

namespace eps {

// The files of a checkpoint's folder.
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kManifestFile[] = "manifest.json";
// Those of which the manifest holds size and sum.
inline constexpr std::array<absl::string_view, 3> kSummedFiles = {kConfigFile, kModelFile, kOptimizerFile};

inline constexpr int64_t kManifestFormat = 1;

struct FileSum {
  int64_t num_bytes = 0;
  std::string sha256;  // 64 lower-case hexadecimal digits

  friend bool operator==(const FileSum&, const FileSum&) = default;
};

struct Manifest {
  RunConfig run;
  RunState state;
  std::map<std::string, FileSum> files;  // kSummedFiles
};

// manifest.json, a JSON object with these members in this order:
//
//   "format"          1
//   "step"            steps done, which is the version of every blob
//   "run"             SerializeRunConfig's text
//   "files"           {"config.json": {"bytes": N, "sha256": "..."}, "model.safetensors": ..., ...}
//   "data_position"   samples consumed: step * sequences per step
//   "tokens", "skipped_steps", "train_seconds", "last_norm", "losses", "gradient_norms"   RunState's
//   "sha256"          of every byte of this file before the line of this member
//
// Numbers have the digits that give the same double again. A loss that is not finite, which only a skipped
// step has, is the string "NaN", "Infinity" or "-Infinity".
std::string ManifestToJson(const Manifest& manifest);

// Trusts no byte: every member is there and known, of its type, within its range, and fits the others.
//
// Errors: DATA_LOSS naming the field, found and wanted · FAILED_PRECONDITION another format
absl::StatusOr<Manifest> ParseManifest(const std::string& text);

}  // namespace eps

#endif  // EPS_COMMON_CHECKPOINT_MANIFEST_H_
