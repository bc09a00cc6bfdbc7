#include "cli/verify/digest_file.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 32;

// Throws what nlohmann throws; ReadDigestFile catches it.
StepDigests ParseLine(const std::string& text) {
  const nlohmann::json line = nlohmann::json::parse(text);
  StepDigests step;
  step.step = line.at("step").get<int64_t>();
  const nlohmann::json& loss = line.at("loss");
  step.loss = loss.is_null() ? std::numeric_limits<double>::quiet_NaN() : loss.get<double>();
  step.skipped = line.at("skipped").get<bool>();
  step.seconds = line.at("seconds").get<double>();
  step.tokens = line.at("tokens").get<int64_t>();
  for (const nlohmann::json& tensor : line.at("tensors")) {
    step.tensors.push_back({.name = tensor.at("name").get<std::string>(),
                            .gradient = tensor.at("gradient").get<std::string>(),
                            .master = tensor.at("master").get<std::string>()});
  }
  return step;
}

}  // namespace

absl::StatusOr<std::vector<StepDigests>> ReadDigestFile(const std::string& path) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
  std::vector<StepDigests> steps;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string where = absl::StrCat(path, ":", steps.size() + 1, ": ");
    try {
      steps.push_back(ParseLine(text.substr(begin, end - begin)));
    } catch (const nlohmann::json::exception& error) {
      return absl::DataLossError(absl::StrCat(where, error.what()));
    }
    if (steps.back().step != static_cast<int64_t>(steps.size()) - 1) {
      return absl::DataLossError(absl::StrCat(where, "step ", steps.back().step, ", want ", steps.size() - 1));
    }
    begin = end + 1;
  }
  return steps;
}

}  // namespace eps::cli
