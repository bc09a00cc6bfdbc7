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
#include "absl/types/span.h"
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

// At a time, and let go to the disk at a time: a model must not gather in the system's memory.
constexpr size_t kPieceBytes = size_t{1} << 20;
constexpr int64_t kWriteBackBytes = int64_t{32} << 20;

absl::Status Sync(const FileDescriptor& file, const std::string& path) {
  return fsync(file.get()) == 0 ? absl::OkStatus() : FileError(errno, "sync", path);
}

// Returns how many bytes there were.
absl::StatusOr<int64_t> Copy(const std::string& from, const std::string& to) {
  EPS_ASSIGN_OR_RETURN(const FileDescriptor source, OpenFile(from, O_RDONLY));
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(to, O_WRONLY | O_CREAT | O_EXCL));
  std::vector<char> buffer(kPieceBytes);
  int64_t num_bytes = 0, unsynced_bytes = 0;
  while (true) {
    const ssize_t read_bytes = read(source.get(), buffer.data(), buffer.size());
    if (read_bytes < 0 && errno == EINTR) continue;
    if (read_bytes < 0) return FileError(errno, "read", from);
    if (read_bytes == 0) break;
    EPS_RETURN_IF_ERROR(WriteAt(file, to, num_bytes, {buffer.data(), static_cast<size_t>(read_bytes)}));
    num_bytes += read_bytes;
    unsynced_bytes += read_bytes;
    if (unsynced_bytes < kWriteBackBytes) continue;
    EPS_RETURN_IF_ERROR(Sync(file, to));
    unsynced_bytes = 0;
  }
  EPS_RETURN_IF_ERROR(Sync(file, to));
  return num_bytes;
}

// What `from` is, or leads to: a folder out of a cache is one of links. Another user's file is copied, as owner and
// mode of a link are shared. Returns how many bytes were copied.
absl::StatusOr<int64_t> LinkOrCopy(const std::string& from, const std::string& to) {
  std::error_code error;
  const std::filesystem::path source = std::filesystem::canonical(from, error);
  if (error) return FileError(error.value(), "find", from);
  struct stat found;
  const bool is_own = stat(source.c_str(), &found) == 0 && found.st_uid == geteuid();
  if (!is_own || link(source.c_str(), to.c_str()) != 0) {
    EPS_RETURN_IF_ERROR(RemoveIfThere(to));  // over a network a link may be made, and an error come back
    return Copy(source.string(), to);
  }
  EPS_ASSIGN_OR_RETURN(const FileDescriptor file, OpenFile(to, O_RDONLY));
  EPS_RETURN_IF_ERROR(Sync(file, to));  // what somebody copied there a moment ago may not be on disk
  return 0;
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
  int64_t num_bytes = 0, unsynced_bytes = 0;
  for (size_t i = 0; i < left.size(); ++i) {
    const absl::Span<const std::byte> bytes = reader->Data(left[i]);
    for (size_t at = 0; at < bytes.size(); at += kPieceBytes) {
      const absl::Span<const std::byte> piece = bytes.subspan(at, kPieceBytes);
      EPS_RETURN_IF_ERROR(writer->Write(i, static_cast<int64_t>(at), piece));
      unsynced_bytes += static_cast<int64_t>(piece.size());
      if (unsynced_bytes < kWriteBackBytes) continue;
      EPS_RETURN_IF_ERROR(writer->StartWriteBack(/*wait=*/true));
      unsynced_bytes = 0;
    }
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
  Sources sources;
  std::set<std::string> replaced;  // as the base's files call them
  for (const BlobSpec& blob : adapter.model().blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const bool is_of_base = tensor.lora == LoraPart::kNone && !base.is_new(tensor);
      if (adapter.has(tensor)) {
        sources.of_adapter.push_back({.name = tensor.name, .tensor = &tensor});
        sources.index.emplace(tensor.name, kAdaptersFile);
        sources.tensor_bytes += tensor.num_elems() * TensorElemBytes("F32");
        if (is_of_base) replaced.insert(base.NameInFile(tensor));
      } else if (!is_of_base) {
        return absl::InvalidArgumentError(
            absl::StrCat(base.folder(), ": tensor ", tensor.name, " is neither there nor in the adapter"));
      }
    }
  }
  for (const ModelFolder::StoredTensor& stored : base.StoredTensors()) {
    std::set<std::string>& left_out = sources.of_base[stored.file];
    if (replaced.contains(stored.name)) {
      left_out.insert(stored.name);
    } else {
      sources.index.emplace(stored.name, stored.file);
      sources.tensor_bytes += stored.num_bytes;
    }
  }
  if (!sources.of_base.contains(kAdaptersFile)) return sources;
  return absl::InvalidArgumentError(absl::StrCat(PathOf(base.folder(), kAdaptersFile),
                                                 ": is there, a file of the model itself; give it another name"));
}

}  // namespace

absl::StatusOr<int64_t> WriteAdaptedFolder(const std::string& folder, const ModelFolder& base,
                                           const AdapterReader& adapter, const ModelFiles& files) {
  EPS_ASSIGN_OR_RETURN(const std::string base_config, ReadFile(PathOf(base.folder(), "config.json")));
  EPS_ASSIGN_OR_RETURN(const std::string config, LayOverSource(adapter.model().config, base_config));
  EPS_ASSIGN_OR_RETURN(const Sources sources, FindSources(base, adapter));
  int64_t copied_bytes = 0;
  const auto write = [&](const std::string& aside) -> absl::Status {
    for (const auto& [file, left_out] : sources.of_base) {
      const std::string from = PathOf(base.folder(), file), to = PathOf(aside, file);
      EPS_ASSIGN_OR_RETURN(const int64_t num_bytes,
                           left_out.empty() ? LinkOrCopy(from, to) : CopyWithout(left_out, from, to));
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
