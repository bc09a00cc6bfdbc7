#include "common/checkpoint/model_source.h"

#include <errno.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/json_text.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/corpus/corpus_sources.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr int64_t kMaxConversationsBytes = 1 << 16;

// The folder whose tokenizer made the run's tokens; "": none did.
std::string TokenizerFolder(const RunConfig& run) {
  for (const DataSource& source : run.all_sources()) {
    const std::string& path = source.data.tokenizer_path;
    if (source.data.tokenizer != TokenForm::kModel) continue;
    std::error_code ignored;
    return std::filesystem::is_directory(path, ignored) ? path : DirName(path);
  }
  return "";
}

// data.chat_template where a file of data holds conversations, which its first line tells.
absl::StatusOr<std::string> TemplateOfConversations(const RunConfig& run) {
  const std::atomic<bool> stop = false;
  for (const DataSource& source : run.all_sources()) {
    const DataConfig& data = source.data;
    if (!data.is_jsonl || data.tokenizer != TokenForm::kModel) continue;
    const absl::StatusOr<CorpusSources> looked = InspectSources({data.path}, CorpusFormat::kJsonl, {}, stop);
    EPS_RETURN_IF_ERROR_WITH(looked.status(), data.path_field);
    if (looked->content == CorpusContent::kConversations) return data.chat_template;
  }
  return std::string();
}

// The files of model.from, with the tokenizer that the run has told in place of that folder's own.
absl::StatusOr<ModelSource> SourceOf(const RunConfig& run) {
  ModelSource source;
  if (!run.model_from.empty()) {
    absl::StatusOr<ModelFiles> files = ReadModelFiles(run.model_from);
    EPS_RETURN_IF_ERROR_WITH(files.status(), "model.from");
    source.files = *std::move(files);
    source.place = run.model_from;
  }
  const std::string tokenizer = TokenizerFolder(run);
  if (!tokenizer.empty() && tokenizer != run.model_from) {
    const absl::StatusOr<ModelFiles> files = ReadModelFiles(tokenizer);
    EPS_RETURN_IF_ERROR_WITH(files.status(), "data.tokenizer_path");
    for (const char* name : TokenizerFileNames()) {
      source.files.erase(name);
      if (const auto found = files->find(name); found != files->end()) source.files.insert(*found);
    }
    source.place = absl::StrCat(source.place, source.place.empty() ? "" : " and ", tokenizer);
  }
  if (HasTokenizer(source.files)) source.tokenizer_path = tokenizer.empty() ? run.model_from : tokenizer;
  return source;
}

absl::Status WriteSource(const ModelSource& source, const std::string& folder) {
  EPS_RETURN_IF_ERROR(WriteModelFiles(source.files, folder));
  if (source.chat_template.empty()) return absl::OkStatus();
  const nlohmann::json conversations = {{"chat_template", source.chat_template}};
  return WriteFileAtomically(absl::StrCat(folder, "/", kConversationsFile), conversations.dump() + "\n");
}

std::string KeptIn(const std::string& run_folder) { return absl::StrCat(run_folder, "/", kModelSourceFolder); }

bool IsKept(const std::string& run_folder) {
  std::error_code ignored;
  return std::filesystem::is_directory(KeptIn(run_folder), ignored);
}

absl::Status Keep(const ModelSource& source, const std::string& run_folder) {
  const std::string folder = KeptIn(run_folder);
  if (source.files.empty()) return absl::OkStatus();
  const std::string aside = absl::StrCat(run_folder, "/.tmp-", kModelSourceFolder);
  std::error_code ignored;
  std::filesystem::remove_all(aside, ignored);  // of a process that was killed
  EPS_RETURN_IF_ERROR(MakeDirs(aside));
  absl::Status status = WriteSource(source, aside);
  if (status.ok() && std::rename(aside.c_str(), folder.c_str()) != 0) status = FileError(errno, "rename", aside);
  if (status.ok()) return SyncDirectory(run_folder);
  std::filesystem::remove_all(aside, ignored);
  return status;
}

absl::StatusOr<std::string> ReadConversations(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFile(path, kMaxConversationsBytes);
  if (absl::IsNotFound(text.status())) return std::string();
  EPS_RETURN_IF_ERROR(text.status());
  const absl::StatusOr<nlohmann::json> object = ParseJson(*text, 4);
  EPS_RETURN_IF_ERROR_WITH(object.status(), path);
  const auto name = object->is_object() ? object->find("chat_template") : object->end();
  if (name != object->end() && name->is_string()) return name->get<std::string>();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": chat_template: missing, or no string; remove the file to export without a template"));
}

absl::StatusOr<ModelSource> ReadFolder(const std::string& folder) {
  ModelSource source;
  EPS_ASSIGN_OR_RETURN(source.files, ReadModelFiles(folder));
  if (!source.files.empty()) source.place = folder;
  if (HasTokenizer(source.files)) source.tokenizer_path = folder;
  return source;
}

absl::StatusOr<ModelSource> ReadKept(const std::string& folder) {
  EPS_ASSIGN_OR_RETURN(ModelSource source, ReadFolder(folder));
  EPS_ASSIGN_OR_RETURN(source.chat_template, ReadConversations(absl::StrCat(folder, "/", kConversationsFile)));
  return source;
}

// RUN of RUN/checkpoints/step-N; nullopt: the checkpoint lies elsewhere.
std::optional<std::string> RunFolderOf(const std::string& checkpoint) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(checkpoint, error).lexically_normal();
  const std::filesystem::path step = absolute.has_filename() ? absolute : absolute.parent_path();
  if (error || step.parent_path().filename() != kCheckpointsFolder) return std::nullopt;
  return step.parent_path().parent_path().string();
}

}  // namespace

absl::Status KeepModelSource(const RunConfig& run, const std::string& run_folder) {
  if (IsKept(run_folder)) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(ModelSource source, SourceOf(run));
  EPS_ASSIGN_OR_RETURN(source.chat_template, TemplateOfConversations(run));
  return Keep(source, run_folder);
}

absl::StatusOr<ModelSource> FindModelSource(const std::string& folder) {
  if (!IsStepFolder(folder)) return ReadFolder(folder);
  if (const std::optional<std::string> run = RunFolderOf(folder); run && IsKept(*run)) return ReadKept(KeptIn(*run));
  EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  EPS_ASSIGN_OR_RETURN(ModelSource source, SourceOf(manifest.run));
  if (source.files.empty()) return ModelSource();
  // The data may be gone.
  if (absl::StatusOr<std::string> name = TemplateOfConversations(manifest.run); name.ok()) {
    source.chat_template = *std::move(name);
  }
  return source;
}

absl::Status CopyModelSource(const std::string& folder, const std::string& to_run_folder) {
  EPS_ASSIGN_OR_RETURN(const ModelSource source, FindModelSource(folder));
  return Keep(source, to_run_folder);
}

}  // namespace eps
