#include "common/run_folder/endpoint_file.h"

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps {
namespace {

std::string PathIn(const std::string& out, EndpointFile file) {
  return out + (file == EndpointFile::kStarting ? "/starting.json" : "/endpoints.json");
}

}  // namespace

absl::Status WriteEndpointFile(const std::string& out, EndpointFile file, const Endpoint& endpoint) {
  const nlohmann::ordered_json json = {
      {"grpc", endpoint.address}, {"metrics", endpoint.page}, {"pid", endpoint.process_id}};
  return WriteFileAtomically(PathIn(out, file), json.dump() + "\n");
}

absl::Status RemoveEndpointFile(const std::string& out, EndpointFile file) { return RemoveIfThere(PathIn(out, file)); }

absl::StatusOr<Endpoint> ReadEndpointFile(const std::string& out, EndpointFile file) {
  const std::string path = PathIn(out, file);
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("grpc") || !json["grpc"].is_string() || !json.contains("pid") ||
      !json["pid"].is_number_integer()) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": wants a text \"grpc\" and a number \"pid\""));
  }
  const bool has_page = json.contains("metrics") && json["metrics"].is_string();
  return Endpoint{.address = json["grpc"].get<std::string>(),
                  .page = has_page ? json["metrics"].get<std::string>() : "",
                  .process_id = json["pid"].get<int64_t>()};
}

}  // namespace eps
