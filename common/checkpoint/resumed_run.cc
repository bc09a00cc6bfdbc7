#include "common/checkpoint/resumed_run.h"

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"

namespace eps {

absl::StatusOr<RunConfig> LoadRunOfFolder(const std::string& out, const std::string& run_file,
                                          const std::vector<FieldOverride>& overrides) {
  const CheckpointDirectory directory(absl::StrCat(out, "/", kCheckpointsFolder));
  const absl::StatusOr<Version> newest = FindNewestCheckpoint(directory);
  if (!newest.ok()) return LoadRunConfig(run_file, overrides);
  const absl::StatusOr<Manifest> manifest = ReadManifest(directory.FolderOf(*newest));
  if (!manifest.ok()) return LoadRunConfig(run_file, overrides);
  return LoadResumedRunConfig(run_file, overrides, manifest->run);
}

}  // namespace eps
