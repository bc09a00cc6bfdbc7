#include "cli/export_model.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "cli/export_files.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_directory.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/formats/merged_model.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/new_folder.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"

namespace eps::cli {
namespace {

// What an export is made of.
struct Export {
  std::unique_ptr<ModelFolder> folder;
  std::unique_ptr<MergedModel> model;  // of `folder`
  ModelSource source;
  ModelFolderForm form;  // with config and files
  std::string end_of_answer;
  std::vector<std::string> notes;
};

// Of `from`, a checkpoint's folder or a model's. Errors: WriteModel's
absl::StatusOr<Export> OpenExport(const std::string& from, ModelFolderForm form) {
  if (IsStepFolder(from)) {  // whose config.json says what it can, and its manifest all
    EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(from));
    EPS_RETURN_IF_ERROR(CheckSaysAll(manifest.run.model));
    EPS_RETURN_IF_ERROR(CheckConfig(from, manifest));
  }
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<ModelFolder> folder, ModelFolder::Open(from));
  EPS_ASSIGN_OR_RETURN(std::unique_ptr<MergedModel> model, MergedModel::Create(*folder));
  EPS_ASSIGN_OR_RETURN(ModelSource source, FindModelSource(from));
  absl::StatusOr<ExportFiles> beside = FilesOfExport(source);
  EPS_RETURN_IF_ERROR_WITH(beside.status(), source.place);
  form.config = std::move(beside->config);
  form.files = std::move(beside->files);
  return Export{.folder = std::move(folder),
                .model = std::move(model),
                .source = std::move(source),
                .form = std::move(form),
                .end_of_answer = std::move(beside->end_of_answer),
                .notes = std::move(beside->notes)};
}

void Say(const std::string& out, const Export& made) {
  const ModelSpec& model = made.model->model();
  const ModelFolderForm& form = made.form;
  const ModelSource& source = made.source;
  std::printf("%s: %lld parameters, %s, %lld layers, %lld wide\n", out.c_str(),
              static_cast<long long>(model.num_parameters()), form.dtype.c_str(),
              static_cast<long long>(model.config.num_layers), static_cast<long long>(model.config.d_model));
  if (const LoraConfig& lora = made.folder->model().config.lora; lora.is_on()) {
    std::printf("  adapters of rank %lld merged into %zu weights\n", static_cast<long long>(lora.rank),
                made.model->num_adapters());
  }
  std::vector<std::string> names;
  for (const auto& [name, bytes] : source.files) names.push_back(name);
  if (!names.empty()) std::printf("  from %s: %s\n", source.place.c_str(), absl::StrJoin(names, ", ").c_str());
  for (const std::string& note : made.notes) std::printf("  %s\n", note.c_str());
  if (!made.end_of_answer.empty()) {
    std::printf("  an answer ends with %s: it is eos in config.json, %s and the tokenizer's settings\n",
                made.end_of_answer.c_str(), kGenerationConfigFile);
  }
  if (HasTokenizer(form.files)) return;
  std::fprintf(stderr,
               "eps: %s has no tokenizer%s: transformers loads the model and cannot make tokens for it, llama.cpp "
               "cannot convert it\n",
               out.c_str(), source.files.empty() ? "" : absl::StrCat(", as ", source.place, " has none").c_str());
}

// As the writer of a folder rounds.
float Rounded(float value, const std::string& dtype) {
  if (dtype == "F32") return value;
  return dtype == "F16" ? ToFloat(ToFp16(value)) : ToFloat(ToBf16TiesToEven(value));
}

bool IsSame(float a, float b) { return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b); }

// Some values of `tensor`, from its middle: as good as all where a model was trained, and read in no time.
absl::Status CompareSome(const TensorSpec& tensor, const Export& made, const ModelFolder& there) {
  constexpr int64_t kMostElems = 4096;
  const int64_t num_elems = std::min(kMostElems, tensor.num_elems());
  const int64_t first = (tensor.num_elems() - num_elems) / 2;
  std::vector<float> wanted(static_cast<size_t>(num_elems)), found(static_cast<size_t>(num_elems));
  EPS_RETURN_IF_ERROR(made.model->ReadPart(tensor, first, absl::MakeSpan(wanted)));
  EPS_RETURN_IF_ERROR(there.ReadPart(tensor, first, absl::MakeSpan(found)));
  for (size_t i = 0; i < wanted.size(); ++i) {
    const float value = Rounded(wanted[i], made.form.dtype);
    if (IsSame(value, found[i])) continue;
    return absl::FailedPreconditionError(absl::StrCat("tensor ", tensor.name, ": element ",
                                                      first + static_cast<int64_t>(i), " is ", found[i], ", and ",
                                                      value, " in the run's newest checkpoint"));
  }
  return absl::OkStatus();
}

// Of the run that has the checkpoint in `folder`; of one that was copied elsewhere the checkpoint's own.
std::string RunFolderOf(const std::string& folder) {
  std::error_code ignored;
  const std::filesystem::path step = std::filesystem::weakly_canonical(std::filesystem::absolute(folder), ignored);
  const bool is_in_run = step.parent_path().filename() == kCheckpointsFolder;
  return (is_in_run ? step.parent_path().parent_path() : step).string();
}

}  // namespace

bool LiesIn(const std::string& path, const std::string& folder) {
  std::error_code ignored;
  const auto resolved = [&](const std::string& name) {
    return (std::filesystem::weakly_canonical(std::filesystem::absolute(name, ignored), ignored) / "").string();
  };
  return absl::StartsWith(resolved(path), resolved(folder));
}

absl::Status CheckIsExport(const std::string& checkpoint, const std::string& folder, const ModelFolderForm& form) {
  EPS_ASSIGN_OR_RETURN(const std::string from, FindCheckpointFolder(checkpoint));
  EPS_ASSIGN_OR_RETURN(const Export made, OpenExport(from, form));
  const ModelSpec& model = made.model->model();
  EPS_ASSIGN_OR_RETURN(const std::string config, ModelConfigToJson(model.config, form.dtype, made.form.config));
  EPS_ASSIGN_OR_RETURN(const std::string found, ReadFile(folder + "/config.json"));
  if (found != config) {
    return absl::FailedPreconditionError(
        absl::StrCat("its config.json is not what the run's export in ", form.dtype, " has"));
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> there, ModelFolder::Open(folder));
  const int64_t elem_bytes = form.dtype == "F32" ? 4 : 2;
  int64_t wanted_bytes = 0;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) wanted_bytes += tensor.num_elems() * elem_bytes;
  }
  if (there->tensor_bytes() != wanted_bytes) {
    return absl::FailedPreconditionError(
        absl::StrCat("its tensors take ", there->tensor_bytes(), " bytes, and ", wanted_bytes, " in ", form.dtype));
  }
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) EPS_RETURN_IF_ERROR(CompareSome(tensor, made, *there));
  }
  return absl::OkStatus();
}

absl::Status WriteModel(const std::string& from, const std::string& out, ModelFolderForm form) {
  EPS_RETURN_IF_ERROR(VerifyCheckpointFolder(from, CheckedFiles::kWeights));
  EPS_ASSIGN_OR_RETURN(const Export made, OpenExport(from, std::move(form)));
  EPS_RETURN_IF_ERROR(WriteModelFolder(out, made.model->model(), made.form,
                                       [&made](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                         return made.model->ReadPart(tensor, first, values);
                                       }));
  Say(out, made);
  return absl::OkStatus();
}

absl::Status ImportModel(const std::string& from, const std::string& out, const ModelFolderForm& form) {
  EPS_ASSIGN_OR_RETURN(const ModelSource source, FindModelSource(from));
  EPS_RETURN_IF_ERROR_WITH(CheckExportFiles(source.files), source.place);
  return WriteModel(from, out, form);
}

absl::Status CheckExportSource(const RunConfig& run, const std::string& resumed) {
  const absl::StatusOr<std::string> checkpoint =
      resumed.empty() ? absl::NotFoundError("") : FindCheckpointFolder(resumed);
  EPS_ASSIGN_OR_RETURN(const ModelSource source, checkpoint.ok() ? FindModelSource(*checkpoint) : ReadModelSource(run));
  EPS_RETURN_IF_ERROR_WITH(CheckExportFiles(source.files), source.place);
  return absl::OkStatus();
}

absl::StatusOr<std::string> FindFolderToExport(const std::string& checkpoint, const std::string& out) {
  EPS_RETURN_IF_ERROR(CheckNewFolder(out));
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindCheckpointFolder(checkpoint));
  if (const std::string run = RunFolderOf(folder); IsStepFolder(folder) && LiesIn(out, run)) {
    return absl::InvalidArgumentError(
        absl::StrCat(out, ": lies in the run's folder, ", run, "; give one outside of it"));
  }
  return folder;
}

absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out, const ModelFolderForm& form) {
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindFolderToExport(checkpoint, out));
  return WriteModel(folder, out, form);
}

CLI::Option* AddDtypeTo(CLI::App& command, const std::string& name, ModelFolderForm& form) {
  return command.add_option(name, form.dtype, "F32, BF16 or F16; 16-bit forms round to nearest even")
      ->check(CLI::IsMember({"F32", "BF16", "F16"}))
      ->capture_default_str();
}

}  // namespace eps::cli
