#include "cli/checkpoint_folder.h"

#include <cstdint>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/file_util.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

absl::StatusOr<std::string> FollowLatest(const std::string& latest) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(latest));
  const std::string name(absl::StripSuffix(text, "\n"));
  if (name.empty() || name.find('/') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(latest, ": not the name of a folder beside it"));
  }
  return absl::StrCat(DirName(latest), "/", name);
}

}  // namespace

absl::StatusOr<std::string> FindCheckpoint(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    if (Exists(path)) return FollowLatest(path);
    return absl::NotFoundError(absl::StrCat("there is no checkpoint at ", path));
  }
  if (Exists(path + "/config.json")) return path;
  for (const char* latest : {"/latest", "/checkpoints/latest"}) {
    if (Exists(path + latest)) return FollowLatest(path + latest);
  }
  return absl::NotFoundError(
      absl::StrCat(path, " holds no checkpoint: neither config.json, nor latest, nor checkpoints/latest"));
}

absl::Status VerifyCheckpoint(const std::string& folder) {
  const std::string path = folder + "/manifest.json";
  if (!Exists(path)) return absl::OkStatus();
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json manifest = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!manifest.is_object() || !manifest.contains("files") || !manifest["files"].is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": no object \"files\""));
  }
  for (const auto& [name, file] : manifest["files"].items()) {
    if (name.find('/') != std::string::npos || !file.is_object() || !file.contains("bytes") ||
        !file["bytes"].is_number_unsigned() || !file.contains("sha256") || !file["sha256"].is_string()) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": files.", name, " wants numbers \"bytes\" and \"sha256\""));
    }
    const std::string file_path = absl::StrCat(folder, "/", name);
    std::error_code error;
    const uintmax_t found_bytes = std::filesystem::file_size(file_path, error);
    if (error) return absl::DataLossError(absl::StrCat(file_path, " is missing; take an older checkpoint"));
    if (found_bytes != file["bytes"].get<uint64_t>()) {
      return absl::DataLossError(absl::StrCat(file_path, " has ", found_bytes, " bytes, the manifest says ",
                                              file["bytes"].get<uint64_t>(), "; take an older checkpoint"));
    }
    EPS_ASSIGN_OR_RETURN(const std::string digest, Sha256HexOfFile(file_path));
    if (digest != file["sha256"].get<std::string>()) {
      return absl::DataLossError(absl::StrCat(file_path, " is damaged: its sha256 is ", digest, ", the manifest says ",
                                              file["sha256"].get<std::string>(), "; take an older checkpoint"));
    }
  }
  return absl::OkStatus();
}

}  // namespace eps::cli
