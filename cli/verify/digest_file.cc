#include "cli/verify/digest_file.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/file_util.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 32;

// `use` may throw what nlohmann throws.
template <typename Use>
absl::Status ForEachLine(const std::string& path, Use use) {
  EPS_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, kMaxBytes));
  int number = 0;
  for (size_t begin = 0; begin < text.size(); ++number) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    absl::Status used;
    try {
      used = use(
          nlohmann::json::parse(text.begin() + static_cast<int64_t>(begin), text.begin() + static_cast<int64_t>(end)));
    } catch (const nlohmann::json::exception& error) {
      used = absl::DataLossError(error.what());
    }
    if (!used.ok()) return Annotate(used, absl::StrCat(path, ":", number + 1));
    begin = end + 1;
  }
  return absl::OkStatus();
}

StepDigests ParseStep(const nlohmann::json& line) {
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
  std::vector<StepDigests> steps;
  EPS_RETURN_IF_ERROR(ForEachLine(path, [&](const nlohmann::json& line) -> absl::Status {
    steps.push_back(ParseStep(line));
    const auto want = static_cast<int64_t>(steps.size()) - 1;
    if (steps.back().step == want) return absl::OkStatus();
    return absl::DataLossError(absl::StrCat("step ", steps.back().step, ", want ", want));
  }));
  return steps;
}

absl::Status ReadForwardFile(const std::string& path, ForwardDigests& digests) {
  return ForEachLine(path, [&](const nlohmann::json& line) -> absl::Status {
    const ForwardKey key = {.step = line.at("step").get<int64_t>(),
                            .layer = line.at("layer").get<int>(),
                            .vnode = line.at("vnode").get<int>(),
                            .micro_batch = line.at("micro_batch").get<int>()};
    digests[key] = line.at("output").get<std::string>();
    return absl::OkStatus();
  });
}

}  // namespace eps::cli
