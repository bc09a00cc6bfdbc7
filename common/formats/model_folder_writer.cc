#include "common/formats/model_folder_writer.h"

#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/new_folder.h"
#include "common/formats/shard_index.h"
#include "common/model/hf_config.h"

namespace eps {
namespace {

constexpr int64_t kMaxShards = 99999;  // what the names have room for

struct Shard {
  std::string file;
  std::vector<NamedTensor> tensors;
};

// The model's tensors in its order, as many in a file as it takes.
std::vector<Shard> CutIntoShards(const ModelSpec& model, const ModelFolderForm& form) {
  std::vector<Shard> shards(1);
  int64_t shard_bytes = 0;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const int64_t num_bytes = tensor.num_elems() * TensorElemBytes(form.dtype);
      if (shard_bytes > 0 && num_bytes > form.max_shard_bytes - shard_bytes) {
        shards.emplace_back();
        shard_bytes = 0;
      }
      shards.back().tensors.push_back({.name = tensor.name, .tensor = &tensor});
      shard_bytes += num_bytes;
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? "model.safetensors"
                                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

absl::Status WriteFiles(const std::string& folder, const ModelSpec& model, const ModelFolderForm& form,
                        const ReadTensorPart& read) {
  const std::vector<Shard> shards = CutIntoShards(model, form);
  if (static_cast<int64_t>(shards.size()) > kMaxShards) {
    return absl::InvalidArgumentError(absl::StrCat("shards of at most ", form.max_shard_bytes, " bytes would be ",
                                                   shards.size(), " files, at most ", kMaxShards));
  }
  EPS_ASSIGN_OR_RETURN(const std::string config, ModelConfigToJson(model.config, form.dtype, form.config));
  ShardIndex index;
  int64_t total_bytes = 0;
  for (const Shard& shard : shards) {
    EPS_RETURN_IF_ERROR(WriteTensorFile(absl::StrCat(folder, "/", shard.file), shard.tensors, form.dtype, read));
    for (const auto& [name, tensor] : shard.tensors) {
      index.emplace(name, shard.file);
      total_bytes += tensor->num_elems() * TensorElemBytes(form.dtype);
    }
  }
  if (shards.size() > 1) {
    EPS_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(folder, "/model.safetensors.index.json"),
                                            ShardIndexToJson(index, total_bytes)));
  }
  EPS_RETURN_IF_ERROR(WriteModelFiles(form.files, folder));
  return WriteFileAtomically(absl::StrCat(folder, "/config.json"), config);
}

absl::Status CheckForm(const ModelFolderForm& form) {
  EPS_RETURN_IF_ERROR(CheckTensorDtype(form.dtype));
  if (form.max_shard_bytes >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shards of ", form.max_shard_bytes, " bytes, must be at least 1"));
}

}  // namespace

absl::Status WriteModelFolder(const std::string& folder, const ModelSpec& model, const ModelFolderForm& form,
                              const ReadTensorPart& read) {
  EPS_RETURN_IF_ERROR(CheckForm(form));
  return WriteNewFolder(folder, [&](const std::string& aside) { return WriteFiles(aside, model, form, read); });
}

}  // namespace eps
