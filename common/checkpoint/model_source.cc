#include "common/checkpoint/model_source.h"

#include <errno.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/json_text.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/mark_ids.h"
#include "common/corpus/corpus_sources.h"
#include "common/model/hf_config.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

constexpr int64_t kMaxConversationsBytes = 1 << 16;

// data.chat_template where a file of data holds conversations, or pairs of them, which its first line tells. Files that are gone hold
// none.
std::string TemplateOfConversations(const RunConfig& run) {
  const std::atomic<bool> stop = false;
  for (const DataSource& source : run.all_sources()) {
    const DataConfig& data = source.data;
    if (!data.is_jsonl || data.tokenizer != TokenForm::kModel) continue;
    const absl::StatusOr<CorpusSources> looked =
        InspectSources({data.path}, CorpusFormat::kJsonl, {}, stop, data.skips_bad_lines);
    const bool are_conversations = looked.ok() && (looked->content == CorpusContent::kConversations ||
                                                   looked->content == CorpusContent::kPreferences);
    if (are_conversations) return data.chat_template;
  }
  return "";
}

using ReadErrors = std::map<std::string, absl::Status>;  // by the file's name

void WarnOf(const ReadErrors& left_out) {
  for (const auto& [name, why] : left_out)
    LogWarning("model_file_not_kept", {{"file", name}, {"reason", why.message()}});
}

// But for what cannot be read: the run trains without it.
ModelFiles ReadWhatCanBeRead(const std::string& folder) {
  ReadErrors left_out;
  ModelFiles files = ReadModelFiles(folder, left_out);
  WarnOf(left_out);
  return files;
}

// The same, but for a config.json: without it an export would be of another model.
absl::StatusOr<ModelFiles> ReadFilesOfModel(const std::string& folder) {
  ReadErrors left_out;
  ModelFiles files = ReadModelFiles(folder, left_out);
  if (const auto config = left_out.find("config.json"); config != left_out.end()) return config->second;
  WarnOf(left_out);
  return files;
}

// The name by which LoadTokenizer takes a file for what `bytes` are.
const char* StandardName(const std::string& path, absl::string_view bytes) {
  const bool is_json = absl::EndsWith(path, ".json") || absl::StartsWith(absl::StripLeadingAsciiWhitespace(bytes), "{");
  return is_json ? "tokenizer.json" : "tokenizer.model";
}

// The file, and what lies beside it and is no other vocabulary.
absl::StatusOr<ModelFiles> ReadTokenizerFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
  ModelFiles files = ReadWhatCanBeRead(DirName(path));
  for (const char* name : VocabularyFileNames()) files.erase(name);
  files.erase("merges.txt");
  const char* name = StandardName(path, bytes);
  files[name] = std::move(bytes);
  return files;
}

// Empty where `path` is gone.
absl::StatusOr<ModelFiles> ReadTokenizerFiles(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) return ReadWhatCanBeRead(path);
  if (std::filesystem::is_regular_file(path, ignored)) return ReadTokenizerFile(path);
  return ModelFiles();
}

// The ids in the model's files are of its own tokenizer. One of the two that is not known here is compared with nothing.
void ForgetOtherMarks(const std::string& own, const std::string& told, ModelFiles& files) {
  const absl::StatusOr<std::unique_ptr<Tokenizer>> was = LoadTokenizer(own), now = LoadTokenizer(told);
  if (was.ok() && now.ok()) ForgetMarksOfOther(**was, **now, files);
}

// Puts the tokenizer in `path` in the place of the model's own, with all of its files.
absl::Status ReplaceTokenizer(const std::string& path, ModelSource& source) {
  const absl::StatusOr<ModelFiles> files = ReadTokenizerFiles(path);
  EPS_RETURN_IF_ERROR_WITH(files.status(), "data.tokenizer_path");
  if (!HasTokenizer(*files)) return absl::OkStatus();
  PutTokenizer(*files, path, source.tokenizer_path, source.files);
  source.place = absl::StrCat(source.place, source.place.empty() ? "" : " and ", path);
  source.tokenizer_path = path;
  return absl::OkStatus();
}

// A run on bytes makes no token of the model's: with its tokenizer an export would be read as what it is not.
void LeaveTokenizerOut(ModelSource& source) {
  for (const char* name : TokenizerFileNames()) source.files.erase(name);
  source.tokenizer_path.clear();
}

absl::Status WriteSource(const ModelSource& source, const std::string& folder) {
  EPS_RETURN_IF_ERROR(WriteModelFiles(source.files, folder));
  if (source.chat_template.empty()) return absl::OkStatus();
  const nlohmann::json conversations = {{"chat_template", source.chat_template}};
  return WriteFileAtomically(absl::StrCat(folder, "/", kConversationsFile), conversations.dump() + "\n");
}

// One that is not there is removed.
absl::Status RemoveFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::remove_all(folder, error);
  return error ? FileError(error.value(), "remove", folder) : absl::OkStatus();
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

// The text in `kept`, which the checkpoint's run has kept, knows more than the checkpoint's own, but nothing of what
// that run, or growing it, has made of the model: layers, classes, dropouts, adapters.
absl::Status LayCheckpointOver(const std::string& checkpoint, const std::string& kept, std::string& text) {
  const std::string path = absl::StrCat(checkpoint, "/", kConfigFile);
  EPS_ASSIGN_OR_RETURN(const std::string own, ReadFile(path));
  const absl::StatusOr<ModelConfig> config = ModelConfigFromJson(own);
  EPS_RETURN_IF_ERROR_WITH(config.status(), path);
  absl::StatusOr<std::string> laid_over = LayOverSource(*config, text);
  EPS_RETURN_IF_ERROR_WITH(laid_over.status(), absl::StrCat(kept, "/", kConfigFile));
  text = *std::move(laid_over);
  return absl::OkStatus();
}

// Of another run's checkpoint what that run has kept, with a config.json of the checkpoint's model.
absl::StatusOr<ModelSource> ReadSourceOfModel(const std::string& folder) {
  const std::optional<std::string> run = IsStepFolder(folder) ? RunFolderOf(folder) : std::nullopt;
  const std::string place = run && HoldsModelSource(*run) ? ModelSourceFolder(*run) : folder;
  ModelSource source;
  EPS_ASSIGN_OR_RETURN(source.files, ReadFilesOfModel(place));
  if (const auto config = source.files.find(kConfigFile); config != source.files.end() && place != folder) {
    EPS_RETURN_IF_ERROR(LayCheckpointOver(folder, place, config->second));
  }
  if (!source.files.empty()) source.place = place;
  if (HasTokenizer(source.files)) source.tokenizer_path = place;
  return source;
}

}  // namespace

std::optional<std::string> RunFolderOf(const std::string& checkpoint) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(checkpoint, error).lexically_normal();
  const std::filesystem::path step = absolute.has_filename() ? absolute : absolute.parent_path();
  if (error || step.parent_path().filename() != kCheckpointsFolder) return std::nullopt;
  return step.parent_path().parent_path().string();
}

void PutTokenizer(const ModelFiles& files, const std::string& path, const std::string& own_path,
                  ModelFiles& model_files) {
  if (!own_path.empty()) ForgetOtherMarks(own_path, path, model_files);
  for (const char* name : TokenizerFileNames()) {
    model_files.erase(name);
    if (const auto found = files.find(name); found != files.end()) model_files.insert(*found);
  }
}

std::string ModelSourceFolder(const std::string& run_folder) {
  return absl::StrCat(run_folder, "/", kModelSourceFolder);
}

std::string TokenizerPathOf(const RunConfig& run) {
  for (const DataSource& source : run.all_sources()) {
    if (source.data.tokenizer == TokenForm::kModel) return source.data.tokenizer_path;
  }
  return "";
}

absl::StatusOr<ModelSource> ReadModelSource(const RunConfig& run) {
  ModelSource source;
  if (!run.model_from.empty()) {
    absl::StatusOr<ModelSource> of_model = ReadSourceOfModel(run.model_from);
    EPS_RETURN_IF_ERROR_WITH(of_model.status(), "model.from");
    source = *std::move(of_model);
  }
  if (run.is_of_bytes()) LeaveTokenizerOut(source);
  if (const std::string tokenizer = TokenizerPathOf(run); !tokenizer.empty() && tokenizer != run.model_from) {
    EPS_RETURN_IF_ERROR(ReplaceTokenizer(tokenizer, source));
  }
  source.chat_template = TemplateOfConversations(run);
  return source;
}

bool HoldsModelSource(const std::string& run_folder) {
  std::error_code ignored;
  return std::filesystem::is_directory(ModelSourceFolder(run_folder), ignored);
}

absl::Status KeepModelSource(const ModelSource& source, const std::string& run_folder) {
  const std::string folder = ModelSourceFolder(run_folder);
  const std::string aside = absl::StrCat(run_folder, "/.tmp-", kModelSourceFolder);
  std::error_code ignored;
  std::filesystem::remove_all(aside, ignored);  // of a process that was killed
  if (source.files.empty()) return RemoveFolder(folder);
  EPS_RETURN_IF_ERROR(MakeDirs(aside));
  absl::Status status = WriteSource(source, aside);
  if (status.ok()) status = RemoveFolder(folder);
  if (status.ok() && std::rename(aside.c_str(), folder.c_str()) != 0) status = FileError(errno, "rename", aside);
  if (status.ok()) return SyncDirectory(run_folder);
  std::filesystem::remove_all(aside, ignored);
  return status;
}

absl::StatusOr<ModelSource> FindModelSource(const std::string& folder) {
  if (!IsStepFolder(folder)) return ReadFolder(folder);
  const std::optional<std::string> run = RunFolderOf(folder);
  const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
  if (run && HoldsModelSource(*run)) {
    EPS_ASSIGN_OR_RETURN(ModelSource kept, ReadKept(ModelSourceFolder(*run)));
    if (manifest.ok() && manifest->run.is_of_bytes()) LeaveTokenizerOut(kept);  // which earlier versions kept
    return kept;
  }
  EPS_RETURN_IF_ERROR(manifest.status());
  EPS_ASSIGN_OR_RETURN(ModelSource source, ReadModelSource(manifest->run));
  return source.files.empty() ? ModelSource() : source;
}

absl::Status CopyModelSource(const std::string& folder, const std::string& to_run_folder) {
  EPS_ASSIGN_OR_RETURN(const ModelSource source, FindModelSource(folder));
  return KeepModelSource(source, to_run_folder);
}

}  // namespace eps
