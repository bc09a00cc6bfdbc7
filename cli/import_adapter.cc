#include "cli/import_adapter.h"

#include <cstdint>
#include <cstdio>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cli/export_files.h"
#include "common/base/status_macros.h"
#include "common/checkpoint/checkpoint_files.h"
#include "common/formats/adapted_folder.h"
#include "common/formats/adapter_reader.h"
#include "common/formats/model_folder.h"
#include "common/formats/model_folder_files.h"
#include "common/formats/new_folder.h"
#include "common/model/model_spec.h"

namespace eps::cli {
namespace {

// The model's, with the adapter's tokenizer, as it was trained with that.
absl::StatusOr<ModelFiles> FilesBeside(const std::string& from, const std::string& adapter) {
  EPS_ASSIGN_OR_RETURN(ModelFiles files, ReadModelFiles(from));
  EPS_ASSIGN_OR_RETURN(const ModelFiles own, ReadModelFiles(adapter));
  if (HasTokenizer(own)) {
    for (const char* name : TokenizerFileNames()) {
      files.erase(name);
      if (const auto found = own.find(name); found != own.end()) files.insert(*found);
    }
  }
  EPS_RETURN_IF_ERROR_WITH(CheckExportFiles(files), absl::StrCat(from, " with ", adapter));
  return files;
}

void Say(const std::string& out, const ModelSpec& model, const std::string& from) {
  int64_t adapters = 0;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) adapters += tensor.lora == LoraPart::kA;
  }
  const LoraConfig& lora = model.config.lora;
  std::printf("%s: %lld parameters of %s, and adapters of rank %lld beside %lld weights\n", out.c_str(),
              static_cast<long long>(model.num_parameters()), from.c_str(), static_cast<long long>(lora.rank),
              static_cast<long long>(adapters));
  std::printf("  alpha %g%s, dropout %g, %s\n", lora.alpha, lora.rank_stabilized ? ", rank-stabilized" : "",
              lora.dropout,
              lora.targets.empty() ? "of all the blocks' products" : absl::StrJoin(lora.targets, ", ").c_str());
}

}  // namespace

absl::Status ImportAdapter(const std::string& from, const std::string& adapter, const std::string& out) {
  EPS_RETURN_IF_ERROR(CheckNewFolder(out));
  if (IsStepFolder(from)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--from: ", from, " is a run's checkpoint; export it first (eps export), and go on top of that folder"));
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFolder> base, ModelFolder::Open(from));
  if (base->model().config.lora.is_on()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--from: ", from, " has adapters already; merge them first (eps export), and go on top of that folder"));
  }
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<AdapterReader> reader, AdapterReader::Open(adapter, base->model().config));
  EPS_ASSIGN_OR_RETURN(const ModelFiles files, FilesBeside(from, adapter));
  EPS_RETURN_IF_ERROR(WriteAdaptedFolder(out, *base, *reader, files));
  Say(out, reader->model(), from);
  return absl::OkStatus();
}

}  // namespace eps::cli
