#include "common/formats/model_folder_writer.h"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "common/formats/safetensors.h"
#include "common/formats/shard_index.h"
#include "common/model/hf_config.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"

namespace eps {
namespace {

// Let go to the disk at a time: so that a model does not gather in the system's memory before it is synced.
constexpr int64_t kWriteBackBytes = int64_t{32} << 20;
constexpr int64_t kMaxShards = 99999;  // what the names have room for

int64_t ElemBytes(const std::string& dtype) { return dtype == "F32" ? 4 : 2; }

// nullopt, or the first value that is not finite, or that `dtype` has no finite number for.
std::optional<size_t> Encode(absl::Span<const float> values, const std::string& dtype, std::vector<std::byte>& bytes) {
  bytes.resize(values.size() * static_cast<size_t>(ElemBytes(dtype)));
  const bool is_wide = dtype == "F32", is_bf16 = dtype == "BF16";
  const uint16_t infinity = is_bf16 ? 0x7F80u : 0x7C00u;
  for (size_t i = 0; i < values.size(); ++i) {
    if (!std::isfinite(values[i])) return i;
    if (is_wide) continue;
    const uint16_t half = is_bf16 ? ToBf16TiesToEven(values[i]).bits : ToFp16(values[i]).bits;
    if ((half & 0x7FFFu) == infinity) return i;
    std::memcpy(&bytes[i * 2], &half, 2);
  }
  if (is_wide) std::memcpy(bytes.data(), values.data(), bytes.size());
  return std::nullopt;
}

absl::Status Unwritable(const TensorSpec& tensor, int64_t elem, float value, const std::string& dtype) {
  const std::string where = absl::StrCat(tensor.name, ", element ", elem, ": ", value);
  // Every program that loads it would give no number for whatever it is asked.
  if (!std::isfinite(value)) return absl::InvalidArgumentError(absl::StrCat(where, ", must be finite"));
  return absl::InvalidArgumentError(absl::StrCat(where, " is too large for ", dtype, ", whose largest number is ",
                                                 dtype == "F16" ? "65504; take BF16 or F32" : "3.3895e38; take F32"));
}

struct Shard {
  std::string file;
  std::vector<const TensorSpec*> tensors;
};

// The model's tensors in its order, as many in a file as it takes.
std::vector<Shard> CutIntoShards(const ModelSpec& model, const ModelFolderForm& form) {
  std::vector<Shard> shards(1);
  int64_t shard_bytes = 0;
  for (const BlobSpec& blob : model.blobs) {
    for (const TensorSpec& tensor : blob.tensors) {
      const int64_t num_bytes = tensor.num_elems() * ElemBytes(form.dtype);
      if (shard_bytes > 0 && num_bytes > form.max_shard_bytes - shard_bytes) {
        shards.emplace_back();
        shard_bytes = 0;
      }
      shards.back().tensors.push_back(&tensor);
      shard_bytes += num_bytes;
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1 ? "model.safetensors"
                                        : absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1, shards.size());
  }
  return shards;
}

absl::Status WriteTensor(SafetensorsWriter& writer, size_t index, const TensorSpec& tensor, const std::string& dtype,
                         const ReadTensorPart& read, int64_t& waiting_bytes) {
  const int64_t num_elems = tensor.num_elems();
  std::vector<float> buffer(static_cast<size_t>(std::min(kChunkElems, num_elems)));
  std::vector<std::byte> bytes;
  for (int64_t first = 0; first < num_elems; first += kChunkElems) {
    const auto values =
        absl::MakeSpan(buffer).subspan(0, static_cast<size_t>(std::min(kChunkElems, num_elems - first)));
    EPS_RETURN_IF_ERROR(read(tensor, first, values));
    if (const std::optional<size_t> wrong = Encode(values, dtype, bytes)) {
      return Unwritable(tensor, first + static_cast<int64_t>(*wrong), values[*wrong], dtype);
    }
    EPS_RETURN_IF_ERROR(writer.Write(index, first * ElemBytes(dtype), bytes));
    waiting_bytes += static_cast<int64_t>(bytes.size());
    if (waiting_bytes < kWriteBackBytes) continue;
    waiting_bytes = 0;
    EPS_RETURN_IF_ERROR(writer.StartWriteBack(/*wait=*/true));
  }
  return absl::OkStatus();
}

absl::Status WriteShard(const std::string& folder, const Shard& shard, const std::string& dtype,
                        const ReadTensorPart& read) {
  std::vector<SafetensorsEntry> entries;
  for (const TensorSpec* tensor : shard.tensors) {
    entries.push_back({.name = tensor->name, .dtype = dtype, .shape = tensor->shape});
  }
  // What every writer of PyTorch tensors says, and some readers ask for.
  EPS_ASSIGN_OR_RETURN(
      const std::unique_ptr<SafetensorsWriter> writer,
      SafetensorsWriter::Create(absl::StrCat(folder, "/", shard.file), std::move(entries), {{"format", "pt"}}));
  int64_t waiting_bytes = 0;
  for (size_t i = 0; i < shard.tensors.size(); ++i) {
    EPS_RETURN_IF_ERROR(WriteTensor(*writer, i, *shard.tensors[i], dtype, read, waiting_bytes));
  }
  return writer->Finish();
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
    EPS_RETURN_IF_ERROR(WriteShard(folder, shard, form.dtype, read));
    for (const TensorSpec* tensor : shard.tensors) {
      index.emplace(tensor->name, shard.file);
      total_bytes += tensor->num_elems() * ElemBytes(form.dtype);
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
  if (form.dtype != "F32" && form.dtype != "F16" && form.dtype != "BF16") {
    return absl::InvalidArgumentError(absl::StrCat("dtype ", form.dtype, " is not one of F32, F16, BF16"));
  }
  if (form.max_shard_bytes >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("shards of ", form.max_shard_bytes, " bytes, must be at least 1"));
}

constexpr char kAside[] = ".tmp.";  // OUT.tmp.PID is OUT while it is written, locked by who writes it

// Removes what writers of `folder` left that were killed. One that writes still, in whatever container, has its lock.
void RemoveLeftovers(const std::string& folder) {
  const std::filesystem::path path(folder);
  const std::string prefix = path.filename().string() + kAside;
  std::error_code error;
  std::filesystem::directory_iterator entry(path.parent_path(), error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int64_t pid = 0;
    if (!absl::StartsWith(name, prefix) || !absl::SimpleAtoi(name.substr(prefix.size()), &pid)) continue;
    const absl::StatusOr<FileDescriptor> lock = LockDirectory(entry->path().string());
    std::error_code ignored;
    if (lock.ok()) std::filesystem::remove_all(entry->path(), ignored);
  }
}

}  // namespace

absl::Status CheckNewFolder(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::exists(folder, ignored)) {
    if (!std::filesystem::is_symlink(folder, ignored)) return absl::OkStatus();
    return absl::AlreadyExistsError(absl::StrCat(folder, " is a link that leads nowhere; choose another name"));
  }
  if (!std::filesystem::is_directory(folder, ignored)) {
    return absl::AlreadyExistsError(absl::StrCat(folder, " is there and no folder; choose another name"));
  }
  if (std::filesystem::is_empty(folder, ignored)) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(folder, " is there and not empty; choose another folder"));
}

absl::Status WriteModelFolder(const std::string& folder, const ModelSpec& model, const ModelFolderForm& form,
                              const ReadTensorPart& read) {
  EPS_RETURN_IF_ERROR(CheckForm(form));
  EPS_RETURN_IF_ERROR(CheckNewFolder(folder));
  std::error_code error, ignored;
  const std::filesystem::path absolute = std::filesystem::absolute(folder, error);
  if (error) return FileError(error.value(), "find", folder);
  // Where a link leads: beside the folder that it names is the disk that was meant.
  const std::filesystem::path target = std::filesystem::weakly_canonical(absolute, error);
  if (error) return FileError(error.value(), "find", folder);
  const std::string clean = target.has_filename() ? target.string() : target.parent_path().string();
  RemoveLeftovers(clean);
  const std::string aside = absl::StrCat(clean, kAside, getpid());
  EPS_RETURN_IF_ERROR(MakeDirs(aside));
  EPS_ASSIGN_OR_RETURN(const FileDescriptor lock, LockDirectory(aside));
  absl::Status status = WriteFiles(aside, model, form, read);
  if (status.ok()) {
    std::filesystem::remove(clean, ignored);  // an empty folder would be in the way
    if (std::rename(aside.c_str(), clean.c_str()) != 0) status = FileError(errno, "rename", aside);
  }
  if (!status.ok()) {
    std::filesystem::remove_all(aside, ignored);
    return status;
  }
  return SyncDirectory(DirName(clean));
}

}  // namespace eps
