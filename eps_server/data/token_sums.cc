#include "eps_server/data/token_sums.h"

#include <cstdint>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/long_work.h"
#include "common/base/sha256.h"
#include "common/base/status_macros.h"
#include "common/formats/document_index.h"
#include "common/formats/document_index_writer.h"

namespace eps::server {
namespace {

// -1: none is there, or nobody can look.
int64_t SizeOf(const std::string& path) {
  std::error_code error;
  const auto num_bytes = std::filesystem::file_size(path, error);
  return error ? -1 : static_cast<int64_t>(num_bytes);
}

absl::StatusOr<nlohmann::json> SumFile(const std::string& path, LongWork* work) {
  EPS_ASSIGN_OR_RETURN(const std::string sha256, Sha256HexOfFile(path, work));
  return nlohmann::json{{"bytes", SizeOf(path)}, {"sha256", sha256}};
}

// Of an earlier version.
std::string FindMismatch(const std::string& token_path) {
  const std::string index_path = DocumentIndexPath(token_path);
  const absl::StatusOr<std::unique_ptr<DocumentIndex>> index = DocumentIndex::Open(index_path);
  if (!index.ok()) return std::string(index.status().message());
  const int64_t wanted_bytes = (*index)->num_tokens() * (*index)->token_bytes();
  const int64_t num_bytes = SizeOf(token_path);
  if (num_bytes == wanted_bytes) return "";
  return absl::StrCat(token_path, " has ", num_bytes, " bytes, by its index ", wanted_bytes);
}

// A member of `sums`, in what was written by anybody.
nlohmann::json Member(const nlohmann::json& sums, const char* file, const char* name) {
  const nlohmann::json of_file = sums.is_object() ? sums.value(file, nlohmann::json()) : nlohmann::json();
  return of_file.is_object() ? of_file.value(name, nlohmann::json()) : nlohmann::json();
}

}  // namespace

absl::StatusOr<nlohmann::json> SumTokenFiles(const std::string& token_path, LongWork* work) {
  const std::string index_path = DocumentIndexPath(token_path);
  if (work != nullptr) {
    work->Begin(absl::StrCat("summing \"", token_path, "\""), SizeOf(token_path) + SizeOf(index_path));
  }
  EPS_ASSIGN_OR_RETURN(nlohmann::json tokens, SumFile(token_path, work));
  EPS_ASSIGN_OR_RETURN(nlohmann::json index, SumFile(index_path, work));
  return nlohmann::json{{"tokens", std::move(tokens)}, {"index", std::move(index)}};
}

absl::StatusOr<std::string> FindDamage(const std::string& token_path, const nlohmann::json& sums, LongWork* work) {
  if (sums.is_null()) return FindMismatch(token_path);
  const std::string index_path = DocumentIndexPath(token_path);
  // The sizes first: they cost nothing, and tell most.
  for (const auto& [file, path] : {std::pair<const char*, const std::string&>("tokens", token_path),
                                   std::pair<const char*, const std::string&>("index", index_path)}) {
    const nlohmann::json wanted = Member(sums, file, "bytes");
    if (wanted != SizeOf(path)) return absl::StrCat(path, " has ", SizeOf(path), " bytes, had ", wanted.dump());
  }
  const absl::StatusOr<nlohmann::json> found = SumTokenFiles(token_path, work);
  if (absl::IsCancelled(found.status())) return found.status();
  if (!found.ok()) return std::string(found.status().message());
  for (const auto& [file, path] : {std::pair<const char*, const std::string&>("tokens", token_path),
                                   std::pair<const char*, const std::string&>("index", index_path)}) {
    if (Member(sums, file, "sha256") != Member(*found, file, "sha256")) {
      return absl::StrCat(path, " is not as it was written, by its SHA-256");
    }
  }
  return std::string();
}

}  // namespace eps::server
