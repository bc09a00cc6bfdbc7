#include "cli/export_model.h"

#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/export_files.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/formats/model_folder.h"
#include "common/model/hf_config.h"

namespace eps::cli {
namespace {

void Say(const std::string& out, const ModelSpec& model, const ModelFolderForm& form, const ModelSource& source,
         const std::vector<std::string>& notes) {
  std::printf("%s: %lld parameters, %s, %lld layers, %lld wide\n", out.c_str(),
              static_cast<long long>(model.num_parameters()), form.dtype.c_str(),
              static_cast<long long>(model.config.num_layers), static_cast<long long>(model.config.d_model));
  std::vector<std::string> names;
  for (const auto& [name, bytes] : source.files) names.push_back(name);
  if (!names.empty()) std::printf("  from %s: %s\n", source.place.c_str(), absl::StrJoin(names, ", ").c_str());
  for (const std::string& note : notes) std::printf("  %s\n", note.c_str());
  if (HasTokenizer(form.files)) return;
  std::fprintf(stderr,
               "eps: %s has no tokenizer%s: transformers loads the model and cannot make tokens for it, llama.cpp "
               "cannot convert it\n",
               out.c_str(), source.files.empty() ? "" : absl::StrCat(", as ", source.place, " has none").c_str());
}

}  // namespace

absl::Status WriteModel(const std::string& from, const std::string& out, ModelFolderForm form) {
  EPS_RETURN_IF_ERROR(VerifyCheckpointFolder(from, kWeightFiles));
  if (IsStepFolder(from)) {  // whose config.json says what it can, and its manifest all
    EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(from));
    EPS_RETURN_IF_ERROR(CheckSaysAll(manifest.run.model));
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> model, ModelFolder::Open(from));
  EPS_ASSIGN_OR_RETURN(const ModelSource source, FindModelSource(from));
  absl::StatusOr<ExportFiles> beside = FilesOfExport(source);
  EPS_RETURN_IF_ERROR_WITH(beside.status(), source.place);
  form.config = std::move(beside->config);
  form.files = std::move(beside->files);
  EPS_RETURN_IF_ERROR(WriteModelFolder(out, model->model(), form,
                                       [&model](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                         return model->ReadPart(tensor, first, values);
                                       }));
  Say(out, model->model(), form, source, beside->notes);
  return absl::OkStatus();
}

absl::Status ExportCheckpoint(const std::string& checkpoint, const std::string& out, const ModelFolderForm& form) {
  EPS_RETURN_IF_ERROR(CheckNewFolder(out));
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindCheckpointFolder(checkpoint));
  return WriteModel(folder, out, form);
}

CLI::Option* AddDtypeTo(CLI::App& command, const std::string& name, ModelFolderForm& form) {
  return command.add_option(name, form.dtype, "F32, BF16 or F16; 16-bit forms round to nearest even")
      ->check(CLI::IsMember({"F32", "BF16", "F16"}))
      ->capture_default_str();
}

}  // namespace eps::cli
