#include "common/formats/adapted_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/new_folder.h"
#include "common/formats/shard_index.h"
#include "common/formats/tensor_file_writer.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"

namespace eps {
namespace {

std::string PathOf(const std::string& folder, const std::string& file) { return absl::StrCat(folder, "/", file); }

absl::Status SyncFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(path, O_RDONLY));
  return fsync(file.get()) == 0 ? absl::OkStatus() : FileError(errno, "sync", path);
}

// What `from` is, or leads to: a folder out of a cache is one of links. Another user's file is copied, as owner and mode of
// a link are shared.
absl::Status LinkOrCopy(const std::string& from, const std::string& to) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(from, error);
  if (error) return FileError(error.value(), "find", from);
  struct stat found;
  const bool is_own = stat(file.c_str(), &found) == 0 && found.st_uid == geteuid();
  if (is_own && link(file.c_str(), to.c_str()) == 0) return absl::OkStatus();
  std::filesystem::copy_file(file, to, error);
  if (error) return FileError(error.value(), "copy", from);
  return SyncFile(to);
}

std::vector<NamedTensor> AdaptersOf(const ModelSpec& model) {
  std::vector<NamedTensor> adapters;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      if (tensor.lora != LoraPart::kNone) adapters.push_back({.name = tensor.name, .tensor = &tensor});
    }
  }
  return adapters;
}

}  // namespace

absl::Status WriteAdaptedFolder(const std::string& folder, const ModelFolder& base, const AdapterReader& adapter,
                                const ModelFiles& files) {
  EPS_ASSIGN_OR_RETURN(const std::string config, LayOverSource(adapter.model().config, files.at("config.json")));
  const std::vector<NamedTensor> adapters = AdaptersOf(adapter.model());
  ShardIndex index = base.Index();
  std::set<std::string> base_files;
  for (const auto& [tensor, file] : index) base_files.insert(file);
  if (base_files.contains(kAdaptersFile)) {
    return absl::InvalidArgumentError(absl::StrCat(PathOf(base.folder(), kAdaptersFile),
                                                   ": is there, a file of the model itself; give it another name"));
  }
  int64_t total_bytes = base.tensor_bytes();
  for (const NamedTensor& tensor : adapters) {
    index.emplace(tensor.name, kAdaptersFile);
    total_bytes += tensor.tensor->num_elems() * TensorElemBytes("F32");
  }
  return WriteNewFolder(folder, [&](const std::string& aside) -> absl::Status {
    for (const std::string& file : base_files) {
      EPS_RETURN_IF_ERROR(LinkOrCopy(PathOf(base.folder(), file), PathOf(aside, file)));
    }
    EPS_RETURN_IF_ERROR(WriteTensorFile(PathOf(aside, kAdaptersFile), adapters, "F32",
                                        [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                          return adapter.ReadPart(tensor, first, values);
                                        }));
    EPS_RETURN_IF_ERROR(
        WriteFileAtomically(PathOf(aside, "model.safetensors.index.json"), ShardIndexToJson(index, total_bytes)));
    EPS_RETURN_IF_ERROR(WriteModelFiles(files, aside));
    return WriteFileAtomically(PathOf(aside, "config.json"), config);
  });
}

}  // namespace eps
