#include "common/spec/run_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/corpus/data_form.h"
#include "common/formats/document_index_header.h"
#include "common/formats/document_index_writer.h"
#include "common/model/hf_config.h"
#include "common/spec/run_spec_check.h"
#include "common/spec/run_spec_text.h"
#include "common/tokenizer/tokenizer_file.h"
#include "proto/run_spec.pb.h"

namespace eps {
namespace {

constexpr int64_t kMaxRunSpecBytes = 1 << 20;
constexpr int64_t kMaxHfConfigBytes = 1 << 24;

// Errors start with `path`, as a compiler's do: "run.textproto:3:17: ...".
absl::StatusOr<proto::RunSpec> ParseFile(const std::string& path, std::string text) {
  // A byte order mark, as editors of Windows put it there.
  if (absl::StartsWith(text, "\xEF\xBB\xBF")) text.erase(0, 3);
  if (absl::EndsWith(path, ".json")) {
    absl::StatusOr<proto::RunSpec> spec = RunSpecFromJson(text);
    EPS_RETURN_IF_ERROR_WITH(spec.status(), path);
    return spec;
  }
  if (absl::EndsWith(path, ".textproto")) return RunSpecFromTextproto(text, path);
  return absl::InvalidArgumentError(absl::StrCat(path, ": a RunSpec's file name ends in .textproto or .json"));
}

// `path` as it is written in a file of folder `base`.
std::string AbsolutePath(const std::string& base, const std::string& path) {
  const std::filesystem::path joined = std::filesystem::path(base) / path;
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(joined, error);
  return (error ? joined : absolute).lexically_normal().string();
}

absl::StatusOr<ModelConfig> ReadHfFolder(const std::string& folder) {
  const std::string path = folder + "/config.json";
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxHfConfigBytes));
  absl::StatusOr<ModelConfig> config = ModelConfigFromJson(text);
  EPS_RETURN_IF_ERROR_WITH(config.status(), path);
  return config;
}

// A run that is gone on with.
struct FormerRun {
  const RunConfig* was = nullptr;  // null: it is a new one
  std::string kept;                // what it has of the folder it began with; "": nothing
};

// In place of `folder`, where it has no config.json; "": it has one, or nobody knows.
std::string WhatToGive(const std::string& folder) {
  std::filesystem::path path(folder);
  if (!path.has_filename()) path = path.parent_path();  // "run/"
  std::error_code ignored;
  if (std::filesystem::exists(path / "config.json", ignored)) return "";
  if (path.filename() == "latest" || path.filename() == "checkpoints" ||
      std::filesystem::is_directory(path / "checkpoints", ignored)) {
    return "; of a run give the folder of one checkpoint, as DIR/checkpoints/step-00000200";
  }
  const std::filesystem::file_type type = std::filesystem::status(path, ignored).type();
  return type == std::filesystem::file_type::not_found ? "; nothing is downloaded: give a folder that is there" : "";
}

absl::StatusOr<ModelConfig> ReadHfFolderOrKept(const std::string& folder, const std::string& kept) {
  absl::StatusOr<ModelConfig> config = ReadHfFolder(folder);
  if (config.ok()) return config;
  if (kept.empty()) {
    return absl::Status(config.status().code(), absl::StrCat(config.status().message(), WhatToGive(folder)));
  }
  if (!absl::IsNotFound(config.status())) return config;
  absl::StatusOr<ModelConfig> config_of_run = ReadHfFolder(kept);
  if (!absl::IsNotFound(config_of_run.status())) return config_of_run;
  return absl::NotFoundError(absl::StrCat(config.status().message(), ", and the run has not kept it: ",
                                          config_of_run.status().message(), "; put one of the two back"));
}

bool HasTokenizerOrKept(const std::string& folder, const std::string& kept) {
  return HasTokenizerFile(folder) || (!kept.empty() && HasTokenizerFile(kept));
}

// "" where it cannot be read: who opens it for its content says why.
std::string BeginningOf(const std::string& path) { return ReadBeginning(path).value_or(""); }

absl::StatusOr<std::optional<DocumentIndexHeader>> IndexOf(const std::string& path) {
  const std::string index_path = DocumentIndexPath(path);
  absl::StatusOr<DocumentIndexHeader> index = ReadDocumentIndexHeader(index_path);
  if (absl::IsNotFound(index.status())) return std::optional<DocumentIndexHeader>();
  EPS_RETURN_IF_ERROR(index.status());
  std::error_code error;
  const uint64_t num_bytes = std::filesystem::file_size(path, error);
  if (!error && num_bytes != static_cast<uint64_t>(index->num_tokens * index->token_bytes)) {
    return absl::InvalidArgumentError(
        absl::StrCat(index_path, " is of ", index->num_tokens, " tokens of ", index->token_bytes, " bytes, but ", path,
                     " has ", num_bytes, " bytes; make both anew with `eps tokenize`, or take the index away"));
  }
  return std::make_optional(*std::move(index));
}

absl::StatusOr<RunConfig> Check(proto::RunSpec spec, const std::string& path,
                                const std::vector<FieldOverride>& overrides, const FormerRun& resumed = {}) {
  for (const FieldOverride& field : overrides) EPS_RETURN_IF_ERROR(ApplyOverride(field, spec));
  const std::string base = DirName(path);
  const std::string& kept = resumed.kept;
  return CheckRunSpec(spec,
                      {.absolute_path = [&](const std::string& p) { return AbsolutePath(base, p); },
                       .read_model = [&](const std::string& folder) { return ReadHfFolderOrKept(folder, kept); },
                       .has_tokenizer = [&](const std::string& folder) { return HasTokenizerOrKept(folder, kept); },
                       .read_beginning = BeginningOf,
                       .read_index = IndexOf,
                       .resumed = resumed.was});
}

// Of a RunSpec that SerializeRunConfig wrote.
absl::StatusOr<RunConfig> CheckSerialized(const proto::RunSpec& spec) {
  return CheckRunSpec(
      spec, {.absolute_path = [](const std::string& p) { return p; }, .read_model = nullptr, .is_serialized = true});
}

// Whether what is wrong is the value of an override, and not the file's.
bool IsOfOverride(const absl::Status& status, const std::vector<FieldOverride>& overrides) {
  return std::any_of(overrides.begin(), overrides.end(), [&status](const FieldOverride& field) {
    return absl::StartsWith(status.message(), absl::StrCat(field.path, ": "));
  });
}

absl::StatusOr<RunConfig> Load(const std::string& path, const std::vector<FieldOverride>& overrides,
                               const FormerRun& resumed = {}) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxRunSpecBytes));
  EPS_ASSIGN_OR_RETURN(const proto::RunSpec spec, ParseFile(path, text));
  absl::StatusOr<RunConfig> config = Check(spec, path, overrides, resumed);
  EPS_RETURN_IF_ERROR_WITH(config.status(),
                           IsOfOverride(config.status(), overrides) ? absl::StrCat(path, " with --set") : path);
  return config;
}

// What bits depend on: of the evaluation only what is kept from the training, and not how many versions are kept.
proto::RunSpec SpecOfBits(const RunConfig& config) {
  proto::RunSpec spec = ToRunSpec(config);
  spec.mutable_precision()->clear_wire_versions();
  if (!spec.precision().has_frozen()) spec.mutable_precision()->set_frozen(proto::Frozen::WIRE);  // to be named, too
  proto::Evaluation& evaluation = *spec.mutable_evaluation();  // there in any case, so that its field is what differs
  evaluation.Clear();
  if (config.evaluation.held_out > 0) evaluation.set_held_out(config.evaluation.held_out);
  return spec;
}

}  // namespace

std::string DataConfig::DocumentName(int64_t document) const {
  if (made_from.empty()) return absl::StrCat("document ", document, " of ", path, ", counted from 0,");
  return absl::StrCat("document ", document + 1, " of ", made_from,
                      ", counted from 1 without those that were left out,");
}

absl::StatusOr<FieldOverride> ParseFieldOverride(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals == std::string::npos || equals == 0) {
    return absl::InvalidArgumentError(absl::StrCat("--set ", text, ": not of the form field.path=value"));
  }
  return FieldOverride{text.substr(0, equals), text.substr(equals + 1)};
}

absl::StatusOr<std::vector<FieldOverride>> WithPathsFromHere(std::vector<FieldOverride> overrides) {
  for (FieldOverride& field : overrides) {
    const bool is_source = absl::StartsWith(field.path, "data.sources[");
    const bool is_path =
        field.path == "evaluation.path" || field.path == "data.path" || field.path == "data.tokenizer_path" ||
        field.path == "optimizer_offload.path" ||
        (is_source && (absl::EndsWith(field.path, "].path") || absl::EndsWith(field.path, "].tokenizer_path")));
    if (!is_path || field.value.empty()) continue;
    std::error_code error;
    const std::filesystem::path path = std::filesystem::absolute(field.value, error);
    if (error) return absl::NotFoundError(absl::StrCat("--set: ", field.path, ": ", error.message()));
    field.value = path.string();
  }
  return overrides;
}

absl::StatusOr<RunConfig> LoadRunConfig(const std::string& path, const std::vector<FieldOverride>& overrides) {
  return Load(path, overrides);
}

absl::StatusOr<RunConfig> LoadResumedRunConfig(const std::string& path, const std::vector<FieldOverride>& overrides,
                                               const RunConfig& was, const std::string& kept) {
  return Load(path, overrides, {.was = &was, .kept = kept});
}

absl::StatusOr<RunConfig> RunConfigOfModel(const std::string& model, const std::vector<FieldOverride>& overrides) {
  constexpr absl::string_view kConfig = "config.json";
  proto::RunSpec spec;
  const bool is_file = std::filesystem::path(model).filename().string() == kConfig;
  const std::string file = is_file ? model : absl::StrCat(model, "/", kConfig);
  EPS_RETURN_IF_ERROR(ReadFile(file, kMaxHfConfigBytes).status());
  spec.mutable_model()->set_from(is_file ? AbsolutePath(".", DirName(model)) : AbsolutePath(".", model));
  spec.mutable_data()->set_path("planned.bin");
  spec.mutable_optimizer()->mutable_schedule()->set_peak(1e-4);
  spec.set_steps(1);
  absl::StatusOr<RunConfig> config = Check(spec, file, overrides);
  const bool is_told = std::any_of(overrides.begin(), overrides.end(),
                                   [](const FieldOverride& field) { return field.path == "model.context"; });
  if (config.ok() && config->model.context > kPlannedContext && !is_told) {
    std::vector<FieldOverride> shorter = overrides;
    shorter.push_back({"model.context", absl::StrCat(kPlannedContext)});
    config = Check(spec, file, shorter);
  }
  EPS_RETURN_IF_ERROR_WITH(config.status(), file);
  return config;
}

std::string SerializeRunConfig(const RunConfig& config) { return RunSpecToTextproto(ToRunSpec(config)); }

absl::StatusOr<RunConfig> ParseRunConfig(const std::string& text) {
  EPS_ASSIGN_OR_RETURN(const proto::RunSpec spec, RunSpecFromTextproto(text, "run config"));
  return CheckSerialized(spec);
}

absl::StatusOr<RunConfig> WithOverrides(const RunConfig& config, const std::vector<FieldOverride>& overrides) {
  proto::RunSpec spec = ToRunSpec(config);
  for (const FieldOverride& field : overrides) EPS_RETURN_IF_ERROR(ApplyOverride(field, spec));
  return CheckSerialized(spec);
}

int64_t EvaluationConfig::HeldOut(int64_t num_samples) const {
  if (held_out == 0 || num_samples < 2) return 0;
  return std::clamp<int64_t>(std::llround(held_out * static_cast<double>(num_samples)), 1, num_samples - 1);
}

DataConfig RunConfig::evaluation_data() const {
  DataConfig result = sources.empty() ? data : sources.front().data;
  result.path_field = "evaluation.path";
  result.path = evaluation.path;
  return result;
}

std::vector<DataSource> RunConfig::all_sources() const {
  return sources.empty() ? std::vector<DataSource>{{data, 1}} : sources;
}

absl::Status CheckWorkers(absl::string_view flag, int workers, const BatchConfig& batch) {
  if (workers <= batch.virtual_nodes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(flag, ": ", workers, ", must be at most ", batch.virtual_nodes,
                                                 ", as batch.virtual_nodes is: others would have nothing to do"));
}

bool RunConfig::is_of_bytes() const {
  const std::vector<DataSource> all = all_sources();
  return std::all_of(all.begin(), all.end(),
                     [](const DataSource& source) { return source.data.tokenizer == TokenForm::kBytes; });
}

std::vector<std::string> DifferencesThatMatter(const RunConfig& was, const RunConfig& now) {
  return RunSpecDifferences(SpecOfBits(was), SpecOfBits(now),
                            {"relay", "transport", "checkpoint", "optimizer_offload"});
}

}  // namespace eps
