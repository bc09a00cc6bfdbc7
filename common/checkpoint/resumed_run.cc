#include "common/checkpoint/resumed_run.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/tokenizer/tokenizer_file.h"

namespace eps {
namespace {

// nullopt: it is a new run.
std::optional<Manifest> ReadNewestManifest(const std::string& out) {
  const CheckpointDirectory directory(absl::StrCat(out, "/", kCheckpointsFolder));
  const absl::StatusOr<Version> newest = FindNewestCheckpoint(directory);
  if (!newest.ok()) return std::nullopt;
  absl::StatusOr<Manifest> manifest = ReadManifest(directory.FolderOf(*newest));
  if (!manifest.ok()) return std::nullopt;
  return *std::move(manifest);
}

bool HasConfig(const std::string& folder) {
  std::error_code ignored;
  return std::filesystem::exists(folder + "/config.json", ignored);
}

// kept_path: of the tokenizer that lies in the folder `kept`, where there is one.
absl::Status TakeKeptTokenizer(const std::string& kept_path, const std::string& kept, DataConfig& data) {
  if (data.tokenizer != TokenForm::kModel || HasTokenizerFile(data.tokenizer_path)) return absl::OkStatus();
  if (data.tokenizer_path != kept_path || !HasTokenizerFile(kept)) {
    return absl::NotFoundError(absl::StrCat(data.field, ".tokenizer_path: there is no tokenizer in ",
                                            data.tokenizer_path, ", and the run has not kept it in ", kept,
                                            "; put one of the two back"));
  }
  data.tokenizer_path = kept;
  return absl::OkStatus();
}

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// Where a model or its tokenizer has gone: what is in them is compared with nothing, so that the former one is gone, and
// the other is there. One that was not given stays so, here and below.
void FollowModel(const std::string& now, std::string& was) {
  if (!was.empty() && !HasConfig(was) && HasConfig(now)) was = now;
}

void FollowTokenizer(const std::string& now, std::string& was) {
  if (!was.empty() && !HasTokenizerFile(was) && HasTokenizerFile(now)) was = now;
}

// Data are compared when they are opened, which those of a finished run are not.
void FollowData(const DataConfig& now, DataConfig& was) {
  if (!was.path.empty() && (Exists(now.path) || !Exists(was.path))) was.path = now.path;
  FollowTokenizer(now.tokenizer_path, was.tokenizer_path);
}

}  // namespace

std::vector<std::string> DifferencesThatMatter(const Manifest& was, const RunConfig& now) {
  RunConfig moved = was.run;
  if (was.state.data.is_known()) {
    FollowModel(now.model_from, moved.model_from);
    FollowData(now.data, moved.data);
    const size_t num_sources = std::min(now.sources.size(), moved.sources.size());
    for (size_t i = 0; i < num_sources; ++i) FollowData(now.sources[i].data, moved.sources[i].data);
  }
  return DifferencesThatMatter(moved, now);
}

absl::StatusOr<RunConfig> LoadRunOfFolder(const std::string& out, const std::string& run_file,
                                          const std::vector<FieldOverride>& overrides) {
  const std::optional<Manifest> manifest = ReadNewestManifest(out);
  if (!manifest.has_value()) return LoadRunConfig(run_file, overrides);
  return LoadResumedRunConfig(run_file, overrides, manifest->run, ModelSourceFolder(out));
}

absl::StatusOr<RunConfig> WithKeptTokenizer(const std::string& out, const RunConfig& run) {
  if (!ReadNewestManifest(out).has_value()) return run;
  const std::string kept_path = TokenizerPathOf(run), kept = ModelSourceFolder(out);
  RunConfig readable = run;
  EPS_RETURN_IF_ERROR(TakeKeptTokenizer(kept_path, kept, readable.data));
  for (DataSource& source : readable.sources) EPS_RETURN_IF_ERROR(TakeKeptTokenizer(kept_path, kept, source.data));
  return readable;
}

std::vector<std::string> FindGoneSources(const RunConfig& run) {
  std::vector<std::string> gone;
  if (!run.model_from.empty() && !HasConfig(run.model_from)) gone.push_back(run.model_from);
  const std::string tokenizer = TokenizerPathOf(run);
  if (tokenizer.empty() || HasTokenizerFile(tokenizer)) return gone;
  if (gone.empty() || gone.front() != tokenizer) gone.push_back(tokenizer);
  return gone;
}

}  // namespace eps
