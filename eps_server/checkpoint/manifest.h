#ifndef EPS_SERVER_CHECKPOINT_MANIFEST_H_
#define EPS_SERVER_CHECKPOINT_MANIFEST_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"
#include "eps_server/checkpoint/run_state.h"

namespace eps::server {

// The files of a checkpoint's folder.
inline constexpr char kModelFile[] = "model.safetensors";
inline constexpr char kOptimizerFile[] = "optimizer.safetensors";
inline constexpr char kConfigFile[] = "config.json";
inline constexpr char kManifestFile[] = "manifest.json";

inline constexpr int64_t kManifestFormat = 1;

struct FileSum {
  int64_t num_bytes = 0;
  std::string sha256;  // 64 lower-case hexadecimal digits

  friend bool operator==(const FileSum&, const FileSum&) = default;
};

struct Manifest {
  RunConfig run;
  RunState state;
  std::map<std::string, FileSum> files;  // the three above, less the manifest
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

}  // namespace eps::server

#endif  // EPS_SERVER_CHECKPOINT_MANIFEST_H_
