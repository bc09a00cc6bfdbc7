#include "cli/export_adapter.h"

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "cli/export_files.h"
#include "cli/export_model.h"
#include "common/base/shown_text.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/checkpoint/manifest.h"
#include "common/checkpoint/model_source.h"
#include "common/formats/adapter_folder.h"
#include "common/formats/adapter_parts.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"
#include "common/numeric/quantized.h"
#include "common/spec/run_config.h"
#include "common/tensor/dtype.h"

namespace eps::cli {
namespace {

absl::Status Refuse(const std::string& folder, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("--adapter: ", folder, " ", why));
}

// Of a run that has adapters. Errors: ReadManifest's, and that it has none
absl::StatusOr<RunConfig> ReadRun(const std::string& folder) {
  if (!IsStepFolder(folder)) {
    return Refuse(folder,
                  "is no run's checkpoint, and --adapter exports the adapters of one alone; give one, or leave it out");
  }
  EPS_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  if (!manifest.run.model.lora.is_on()) return Refuse(folder, "has no adapters (model.lora); leave --adapter out");
  EPS_RETURN_IF_ERROR(CheckSaysAll(manifest.run.model));
  return std::move(manifest.run);
}

// That of the folder that the run, or what it was grown of, began with. nullopt: it is not known, or there was none
absl::StatusOr<std::optional<ModelConfig>> ReadBaseConfig(const ModelSource& source) {
  const auto text = source.files.find(kConfigFile);
  if (text == source.files.end()) return std::optional<ModelConfig>();
  EPS_ASSIGN_OR_RETURN(ModelConfig config, ModelConfigFromJson(text->second));
  return std::optional<ModelConfig>(std::move(config));
}

// Those of the tokenizer: the rest is the base's.
ModelFiles TokenizerFiles(const ModelFiles& files) {
  ModelFiles found;
  for (const char* name : TokenizerFileNames()) {
    if (const auto file = files.find(name); file != files.end()) found.insert(*file);
  }
  return found;
}

// As precision.frozen or precision.wire has it.
std::string BaseValues(const RunConfig& run) {
  if (const std::optional<QuantizedFormat> format = run.model.frozen_format; format.has_value()) {
    return std::string(NameOf(*format));
  }
  switch (run.precision.wire) {
    case Dtype::kF32:
      return "FP32";
    case Dtype::kBf16:
      return "BF16";
    case Dtype::kF16:
      return "FP16";
  }
  return "";
}

void Say(const std::string& out, const ModelSpec& model, const AdapterForm& form, const AdapterParts& parts,
         const ExportFiles& beside) {
  int64_t num_parameters = 0, num_adapters = 0;
  for (const NamedTensor& named : parts.tensors) {
    num_parameters += named.tensor->num_elems();
    num_adapters += named.tensor->lora == LoraPart::kA;
  }
  std::printf("%s: %lld parameters, %s, adapters of rank %lld beside %lld weights\n", out.c_str(),
              static_cast<long long>(num_parameters), form.dtype.c_str(),
              static_cast<long long>(model.config.lora.rank), static_cast<long long>(num_adapters));
  if (!parts.modules_to_save.empty()) {
    std::printf("  and whole modules, with which vLLM takes no adapter: %s\n", SomeOf(parts.modules_to_save).c_str());
  }
  if (!form.base_model.empty()) std::printf("  goes on top of %s\n", form.base_model.c_str());
  if (const std::optional<QuantizedFormat> format = model.config.frozen_format; format.has_value()) {
    const std::string name(NameOf(*format));
    std::printf("  trained beside blocks in %s: beside others, give precision.frozen=%s for the very same values\n",
                name.c_str(), name.c_str());
  }
  for (const std::string& note : beside.notes) std::printf("  %s\n", note.c_str());
  if (!beside.end_of_answer.empty()) {
    std::printf(
        "  an answer ends with %s: it is eos in the tokenizer's settings; where the base's generation_config.json "
        "has another, who asks has to stop at this one\n",
        beside.end_of_answer.c_str());
  }
}

// What others would miss of the model that the adapters go on top of, where nobody has named it; "": nothing.
std::string WhatIsMissing(const RunConfig& run, const ModelSource& source, const std::optional<ModelConfig>& base) {
  if (IsStepFolder(run.model_from)) {
    return absl::StrCat(
        "goes on top of ", run.model_from,
        ", a run's checkpoint, which may be gone some day, and of whose adapters, if it has any, others "
        "see nothing: --base names the model that its run began with, where that is as deep, and was "
        "trained by adapters alone; else leave --adapter out");
  }
  if (base.has_value() && base->lora.is_on()) {
    return absl::StrCat("goes on top of ", run.model_from,
                        ", which has adapters beside its weights, of which others see nothing: --base names the model "
                        "without them");
  }
  if (!run.model_from.empty()) return "";
  if (source.files.contains(kConfigFile)) {
    return "goes on top of a model that its run no longer names, as eps branch and eps grow leave model.from out: "
           "--base names it";
  }
  return "goes on top of a model that began from model.init_seed, which nobody else has; leave --adapter out for a "
         "folder of the whole";
}

}  // namespace

absl::Status ExportAdapter(const std::string& checkpoint, const std::string& out, const std::string& dtype,
                           const std::string& named_base) {
  EPS_ASSIGN_OR_RETURN(const std::string folder, FindFolderToExport(checkpoint, out));
  EPS_ASSIGN_OR_RETURN(const RunConfig run, ReadRun(folder));
  EPS_RETURN_IF_ERROR(VerifyCheckpointFolder(folder, CheckedFiles::kWeights));
  EPS_ASSIGN_OR_RETURN(const ModelSource source, FindModelSource(folder));
  const absl::StatusOr<ExportFiles> beside = FilesOfExport(source);
  EPS_RETURN_IF_ERROR_WITH(beside.status(), source.place);
  const absl::StatusOr<std::optional<ModelConfig>> base = ReadBaseConfig(source);
  EPS_RETURN_IF_ERROR_WITH(base.status(), absl::StrCat(source.place, "/", kConfigFile));
  if (base->has_value() && (*base)->num_layers != run.model.num_layers) {
    return Refuse(folder, absl::StrCat("has ", run.model.num_layers, " layers, and what it began with ",
                                       (*base)->num_layers, " (eps grow): it fits nothing; leave --adapter out"));
  }
  const AdapterForm form = {.dtype = dtype,
                            .base_model = named_base.empty() ? run.model_from : named_base,
                            .base_values = BaseValues(run),
                            .files = TokenizerFiles(beside->files)};
  EPS_ASSIGN_OR_RETURN(const ModelSpec model, BuildModel(run.model));  // which knows what was frozen
  // Of another base than the run's own, and of a checkpoint, whose config.json says what its run had made of the model, all
  // that the base may lack comes along.
  const bool is_known = named_base.empty() && !IsStepFolder(run.model_from);
  const absl::StatusOr<AdapterParts> parts = PartsOfAdapter(model, is_known ? *base : std::nullopt);
  EPS_RETURN_IF_ERROR_WITH(parts.status(), "--adapter");
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> opened, ModelFolder::Open(folder));
  EPS_RETURN_IF_ERROR(WriteAdapterFolder(out, model.config, form, *parts,
                                         [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                           return opened->ReadChecked(tensor, first, values);
                                         }));
  Say(out, model, form, *parts, *beside);
  const std::string missing = named_base.empty() ? WhatIsMissing(run, source, *base) : "";
  if (!missing.empty()) std::fprintf(stderr, "eps: %s %s\n", out.c_str(), missing.c_str());
  return absl::OkStatus();
}

}  // namespace eps::cli
