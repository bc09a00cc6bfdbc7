#include "common/checkpoint/checkpoint_files.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/long_work.h"
#include "common/base/parallel_for.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/model/hf_config.h"
#include "common/model/model_spec.h"

namespace eps {
namespace {

// Losses and norms of six million steps.
constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

std::string PathOf(const std::string& folder, absl::string_view file) { return absl::StrCat(folder, "/", file); }

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

// "step-00000120" of "a/step-00000120/", of a link to it, and of "." in it.
std::string NameOf(const std::string& folder) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::canonical(folder, error);
  return (error ? std::filesystem::path(folder) : whole).filename().string();
}

absl::StatusOr<int64_t> FileBytes(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::DataLossError(absl::StrCat(path, ": found ", error || !Exists(path) ? "nothing" : "no regular file"));
  }
  const uintmax_t num_bytes = std::filesystem::file_size(path, error);
  if (error) return FileError(error.value(), "stat", path);
  return static_cast<int64_t>(num_bytes);
}

absl::Status IsGone(const std::string& folder) {
  return absl::NotFoundError(
      absl::StrCat(folder, ": is not there, or not any more: a run removes checkpoints when it has newer ones"));
}

absl::StatusOr<std::string> NewestFolderOf(const std::string& path) {
  const CheckpointDirectory directory(path);
  EPS_ASSIGN_OR_RETURN(const Version newest, FindNewestCheckpoint(directory));
  return directory.FolderOf(newest);
}

// Fills `buffer`, or what the rest of the file gives. Errors: FileError's
absl::StatusOr<size_t> ReadPart(const FileDescriptor& file, const std::string& path, absl::Span<std::byte> buffer) {
  size_t filled = 0;
  while (filled < buffer.size()) {
    const ssize_t n = read(file.get(), buffer.data() + filled, buffer.size() - filled);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(errno, "read", path);
    if (n == 0) break;
    filled += static_cast<size_t>(n);
  }
  return filled;
}

// Where a file differs from what was written, part by part.
std::string DescribeDamage(const std::vector<uint32_t>& found, const std::vector<uint32_t>& wanted, int64_t num_bytes) {
  if (wanted.empty()) return "";  // format 1
  int64_t damaged = 0;
  std::optional<int64_t> first;
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (i < found.size() && found[i] == wanted[i]) continue;
    if (!first.has_value()) first = static_cast<int64_t>(i);
    ++damaged;
  }
  if (!first.has_value()) return ", no part of it by its crc32";  // one chance in 2^32, or a manifest made by hand
  const int64_t begin = *first * kPartBytes;
  return absl::StrCat(", damaged in ", damaged, " of ", wanted.size(), " parts, first between byte ", begin, " and ",
                      std::min(begin + kPartBytes, num_bytes) - 1);
}

absl::Status CheckSum(const std::string& path, const FileSum& wanted, LongWork* work) {
  EPS_ASSIGN_OR_RETURN(const std::string found, Sha256HexOfFile(path, work));
  if (found == wanted.sha256) return absl::OkStatus();
  // Read again, for the parts: only who has a damaged file pays for it.
  EPS_ASSIGN_OR_RETURN(const FileSum parts, SumFile(path));
  return absl::DataLossError(absl::StrCat(path, ": found sha256 ", found, ", must be ", wanted.sha256,
                                          " as its manifest says",
                                          DescribeDamage(parts.part_crcs, wanted.part_crcs, wanted.num_bytes)));
}

absl::Status CheckFiles(const std::string& folder, CheckedFiles files) {
  EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  EPS_RETURN_IF_ERROR(CheckSizes(folder, manifest));
  EPS_RETURN_IF_ERROR(CheckSums(folder, manifest, files));
  return files == CheckedFiles::kAll ? absl::OkStatus() : CheckConfig(folder, manifest);
}

}  // namespace

absl::StatusOr<FileSummer> FileSummer::Open(std::string path) {
  EPS_RETURN_IF_ERROR(FileBytes(path).status());
  EPS_ASSIGN_OR_RETURN(FileDescriptor file, OpenFile(path, O_RDONLY));
  return FileSummer(std::move(path), std::move(file));
}

FileSummer::FileSummer(std::string path, FileDescriptor file)
    : path_(std::move(path)), file_(std::move(file)), buffer_(static_cast<size_t>(kPartBytes)) {}

absl::StatusOr<bool> FileSummer::SumPart() {
  EPS_ASSIGN_OR_RETURN(const size_t num_bytes, ReadPart(file_, path_, absl::MakeSpan(buffer_)));
  if (num_bytes == 0) return false;
  hash_.Update(absl::MakeConstSpan(buffer_).subspan(0, num_bytes));
  const auto* bytes = reinterpret_cast<const Bytef*>(buffer_.data());
  sum_.part_crcs.push_back(static_cast<uint32_t>(crc32_z(0, bytes, num_bytes)));
  sum_.num_bytes += static_cast<int64_t>(num_bytes);
  return true;
}

FileSum FileSummer::Finish() {
  sum_.sha256 = hash_.FinishHex();
  return std::move(sum_);
}

absl::StatusOr<FileSum> SumFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(FileSummer summer, FileSummer::Open(path));
  while (true) {
    EPS_ASSIGN_OR_RETURN(const bool more, summer.SumPart());
    if (!more) return summer.Finish();
  }
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = PathOf(folder, kManifestFile);
  EPS_RETURN_IF_ERROR(FileBytes(path).status());
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxManifestBytes));
  absl::StatusOr<Manifest> manifest = ParseManifest(text);
  EPS_RETURN_IF_ERROR_WITH(manifest.status(), path);
  return manifest;
}

absl::Status CheckSizes(const std::string& folder, const Manifest& manifest) {
  for (const auto& [name, sum] : manifest.files) {
    const std::string path = PathOf(folder, name);
    EPS_ASSIGN_OR_RETURN(const int64_t found, FileBytes(path));
    if (found != sum.num_bytes) {
      return absl::DataLossError(
          absl::StrCat(path, ": found ", found, " bytes, must be ", sum.num_bytes, " as its manifest says"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckSums(const std::string& folder, const Manifest& manifest, CheckedFiles files, LongWork* work) {
  std::vector<const std::pair<const std::string, FileSum>*> checked;
  int64_t num_bytes = 0;
  for (const auto& file : manifest.files) {
    if (files == CheckedFiles::kWeights && file.first == kOptimizerFile) continue;
    checked.push_back(&file);
    num_bytes += file.second.num_bytes;
  }
  if (work != nullptr) work->Begin("checking the checkpoint's sums", num_bytes);
  std::vector<absl::Status> found(checked.size());
  ParallelFor(checked.size(), [&](size_t i) {
    const auto& [name, sum] = *checked[i];
    found[i] = CheckSum(PathOf(folder, name), sum, work);
  });
  for (const absl::Status& status : found) EPS_RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status CheckConfig(const std::string& folder, const Manifest& manifest) {
  const std::string path = PathOf(folder, kConfigFile);
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const absl::StatusOr<ModelConfig> said = ModelConfigFromJson(text);
  EPS_RETURN_IF_ERROR_WITH(said.status(), path);
  const auto attention = [](const ModelConfig& model) {
    return std::tuple(model.qk_norm, model.qkv_bias, model.out_bias, model.sliding_window);
  };
  if (attention(*said) == attention(manifest.run.model)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path,
                   ": an earlier version wrote another attention there than the model has, which manifest.json says; "
                   "resume the run, a finished one from an earlier checkpoint that checkpoints/latest is made to name: "
                   "the checkpoints that it writes say the model's own"));
}

absl::Status CheckComplete(const std::string& folder) {
  EPS_ASSIGN_OR_RETURN(const Manifest manifest, ReadManifest(folder));
  return CheckSizes(folder, manifest);
}

bool IsStepFolder(const std::string& folder) {
  return Exists(PathOf(folder, kManifestFile)) || ParseStepFolderName(NameOf(folder)).has_value();
}

absl::Status VerifyCheckpointFolder(const std::string& folder, CheckedFiles files) {
  if (!IsStepFolder(folder)) return absl::OkStatus();
  const absl::Status status = CheckFiles(folder, files);
  if (!status.ok() && !Exists(folder)) return IsGone(folder);
  if (!absl::IsDataLoss(status)) return status;
  const std::string frozen = PathOf(folder, kFrozenFile);
  std::error_code ignored;
  const bool is_shared = absl::StrContains(status.message(), absl::StrCat(frozen, ": found")) &&
                         std::filesystem::hard_link_count(frozen, ignored) > 1;
  return absl::DataLossError(absl::StrCat(
      status.message(), "; take an older checkpoint",
      is_shared
          ? ", one that does not share this file, or put it back from a copy (cp onto it, with nothing that reads it)"
          : ""));
}

absl::StatusOr<Version> FindNewestCheckpoint(const CheckpointDirectory& directory) {
  if (const std::optional<Version> latest = directory.Latest(); latest.has_value()) return *latest;
  EPS_ASSIGN_OR_RETURN(const std::vector<Version> steps, directory.Steps());
  if (steps.empty()) return absl::NotFoundError(absl::StrCat("there is no checkpoint in ", directory.path()));
  for (const Version version : steps) {
    if (CheckComplete(directory.FolderOf(version)).ok()) return version;
  }
  return steps.front();
}

absl::StatusOr<std::string> FindCheckpointFolder(const std::string& path) {
  if (!Exists(path)) {
    return ParseStepFolderName(NameOf(path)).has_value()
               ? IsGone(path)
               : absl::NotFoundError(absl::StrCat("there is no checkpoint at ", path));
  }
  if (!IsFolder(path)) {
    if (std::filesystem::path(path).filename() == kLatestFile) return NewestFolderOf(DirName(path));
    return absl::InvalidArgumentError(absl::StrCat(path, ": found a file, must be a checkpoint's folder, ",
                                                   "a run's folder, or the file ", kLatestFile));
  }
  if (Exists(PathOf(path, kManifestFile)) || Exists(PathOf(path, kConfigFile))) return path;
  const std::string checkpoints = PathOf(path, kCheckpointsFolder);
  if (IsFolder(checkpoints)) return NewestFolderOf(checkpoints);
  if (IsStepFolder(path)) return path;  // it lost both; who reads it says so
  absl::StatusOr<std::string> newest = NewestFolderOf(path);
  if (!absl::IsNotFound(newest.status())) return newest;
  return absl::NotFoundError(absl::StrCat(path, " holds no checkpoint: neither ", kManifestFile, ", ", kConfigFile,
                                          ", ", kLatestFile, ", a step-NNNNNNNN folder nor a folder ",
                                          kCheckpointsFolder));
}

}  // namespace eps
