#include "common/formats/adapted_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/new_folder.h"
#include "common/formats/safetensors.h"
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

// All but those tensors. Returns how many bytes of tensors there were; 0, and no file, where none are left.
absl::StatusOr<int64_t> CopyWithout(const std::set<std::string>& names, const std::string& from,
                                    const std::string& to) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<SafetensorsReader> reader, SafetensorsReader::Open(from));
  std::vector<SafetensorsEntry> left;
  for (const SafetensorsEntry& entry : reader->entries()) {
    if (!names.contains(entry.name)) left.push_back(entry);
  }
  if (left.empty()) return 0;
  EPS_ASSIGN_OR_RETURN(const auto writer, SafetensorsWriter::Create(to, left, reader->metadata()));
  int64_t num_bytes = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    EPS_RETURN_IF_ERROR(writer->Write(i, 0, reader->Data(left[i])));
    EPS_RETURN_IF_ERROR(writer->StartWriteBack(/*wait=*/true));
    reader->Release(left[i]);
    num_bytes += left[i].num_bytes;
  }
  EPS_RETURN_IF_ERROR(writer->Finish());
  return num_bytes;
}

// Where each tensor comes from.
struct Sources {
  std::vector<NamedTensor> of_adapter;                   // in the model's order
  std::map<std::string, std::set<std::string>> of_base;  // its files, and which of their tensors the adapter has, too
  ShardIndex index;
  int64_t tensor_bytes = 0;
};

absl::StatusOr<Sources> FindSources(const ModelFolder& base, const AdapterReader& adapter) {
  Sources sources = {.of_adapter = {}, .of_base = {}, .index = base.Index(), .tensor_bytes = base.tensor_bytes()};
  for (const auto& [tensor, file] : sources.index) sources.of_base[file];
  if (sources.of_base.contains(kAdaptersFile)) {
    return absl::InvalidArgumentError(absl::StrCat(PathOf(base.folder(), kAdaptersFile),
                                                   ": is there, a file of the model itself; give it another name"));
  }
  for (const BlobSpec& blob : adapter.model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const bool is_of_base = tensor.lora == LoraPart::kNone && !base.is_new(tensor);
      if (!adapter.has(tensor)) {
        if (is_of_base) continue;
        return absl::InvalidArgumentError(
            absl::StrCat(base.folder(), ": tensor ", tensor.name, " is neither there nor in the adapter"));
      }
      sources.of_adapter.push_back({.name = tensor.name, .tensor = &tensor});
      sources.tensor_bytes += tensor.num_elems() * TensorElemBytes("F32");
      if (is_of_base) {
        const std::string& name = base.NameInFile(tensor);
        sources.of_base.at(sources.index.at(name)).insert(name);
        sources.index.erase(name);
      }
      sources.index[tensor.name] = kAdaptersFile;
    }
  }
  return sources;
}

}  // namespace

absl::StatusOr<int64_t> WriteAdaptedFolder(const std::string& folder, const ModelFolder& base,
                                           const AdapterReader& adapter, const ModelFiles& files) {
  EPS_ASSIGN_OR_RETURN(const std::string config, LayOverSource(adapter.model().config, files.at("config.json")));
  EPS_ASSIGN_OR_RETURN(const Sources sources, FindSources(base, adapter));
  int64_t copied_bytes = 0;
  const auto write = [&](const std::string& aside) -> absl::Status {
    for (const auto& [file, replaced] : sources.of_base) {
      const std::string from = PathOf(base.folder(), file), to = PathOf(aside, file);
      EPS_ASSIGN_OR_RETURN(const int64_t num_bytes,
                           replaced.empty() ? LinkOrCopy(from, to) : CopyWithout(replaced, from, to));
      copied_bytes += num_bytes;
    }
    EPS_RETURN_IF_ERROR(WriteTensorFile(PathOf(aside, kAdaptersFile), sources.of_adapter, "F32",
                                        [&](const TensorSpec& tensor, int64_t first, absl::Span<float> values) {
                                          return adapter.ReadPart(tensor, first, values);
                                        }));
    EPS_RETURN_IF_ERROR(WriteFileAtomically(PathOf(aside, "model.safetensors.index.json"),
                                            ShardIndexToJson(sources.index, sources.tensor_bytes)));
    EPS_RETURN_IF_ERROR(WriteModelFiles(files, aside));
    return WriteFileAtomically(PathOf(aside, "config.json"), config);
  };
  EPS_RETURN_IF_ERROR(WriteNewFolder(folder, write));
  return copied_bytes;
}

}  // namespace eps
