#include "common/formats/adapted_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
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

// Returns how many bytes there were.
absl::StatusOr<int64_t> Copy(const std::string& from, const std::string& to) {
  EPS_ASSIGN_OR_RETURN(const FileDescriptor source, OpenFile(from, O_RDONLY));
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(to, O_WRONLY | O_CREAT | O_EXCL));
  std::vector<char> buffer(size_t{1} << 20);
  int64_t num_bytes = 0;
  while (true) {
    const ssize_t read_bytes = read(source.get(), buffer.data(), buffer.size());
    if (read_bytes < 0 && errno == EINTR) continue;
    if (read_bytes < 0) return FileError(errno, "read", from);
    if (read_bytes == 0) break;
    EPS_RETURN_IF_ERROR(WriteAt(file, to, num_bytes, {buffer.data(), static_cast<size_t>(read_bytes)}));
    num_bytes += read_bytes;
  }
  if (fsync(file.get()) != 0) return FileError(errno, "sync", to);
  return num_bytes;
}

// What `from` is, or leads to: a folder out of a cache is one of links. Another user's file is copied, as owner and
// mode of a link are shared. Returns how many bytes were copied.
absl::StatusOr<int64_t> LinkOrCopy(const std::string& from, const std::string& to) {
  std::error_code error;
  const std::filesystem::path file = std::filesystem::canonical(from, error);
  if (error) return FileError(error.value(), "find", from);
  struct stat found;
  const bool is_own = stat(file.c_str(), &found) == 0 && found.st_uid == geteuid();
  if (is_own && link(file.c_str(), to.c_str()) == 0) return 0;
  EPS_RETURN_IF_ERROR(RemoveIfThere(to));  // over a network a link may be made, and an error come back
  return Copy(file.string(), to);
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

absl::StatusOr<int64_t> WriteAdaptedFolder(const std::string& folder, const ModelFolder& base,
                                           const AdapterReader& adapter, const ModelFiles& files) {
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
  int64_t copied_bytes = 0;
  const auto write = [&](const std::string& aside) -> absl::Status {
    for (const std::string& file : base_files) {
      EPS_ASSIGN_OR_RETURN(const int64_t num_bytes, LinkOrCopy(PathOf(base.folder(), file), PathOf(aside, file)));
      copied_bytes += num_bytes;
    }
    EPS_RETURN_IF_ERROR(WriteTensorFile(PathOf(aside, kAdaptersFile), adapters, "F32",
                                        [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                          return adapter.ReadPart(tensor, first, values);
                                        }));
    EPS_RETURN_IF_ERROR(
        WriteFileAtomically(PathOf(aside, "model.safetensors.index.json"), ShardIndexToJson(index, total_bytes)));
    EPS_RETURN_IF_ERROR(WriteModelFiles(files, aside));
    return WriteFileAtomically(PathOf(aside, "config.json"), config);
  };
  EPS_RETURN_IF_ERROR(WriteNewFolder(folder, write));
  return copied_bytes;
}

}  // namespace eps
