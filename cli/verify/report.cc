#include "cli/verify/report.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace eps::cli {
namespace {

using Outcome = VariantResult::Outcome;

const char* OutcomeName(const VariantResult& result) {
  if (result.is_baseline && result.outcome == Outcome::kSame) return "baseline";
  switch (result.outcome) {
    case Outcome::kSame:
      return "same";
    case Outcome::kDifferent:
      return "different";
    case Outcome::kSkipped:
      return "skipped";
    case Outcome::kFailed:
      return "failed";
  }
  return "";
}

double TokensPerSecond(const VariantResult& result) {
  return result.seconds > 0 ? static_cast<double>(result.tokens) / result.seconds : 0;
}

const char* Colour(const VariantResult& result) {
  switch (result.outcome) {
    case Outcome::kSame:
      return result.is_baseline ? "" : "\033[32m";
    case Outcome::kSkipped:
      return "\033[33m";
    default:
      return "\033[1;31m";
  }
}

nlohmann::ordered_json ToJson(const VariantResult& result) {
  nlohmann::ordered_json json = {{"name", result.name}, {"result", OutcomeName(result)}};
  if (!result.why.empty()) json["why"] = result.why;
  if (result.steps > 0) {
    json["steps"] = result.steps;
    json["tensors"] = result.tensors;
    json["seconds"] = result.seconds;
    json["tokens_per_second"] = TokensPerSecond(result);
  }
  if (result.outcome != Outcome::kDifferent) return json;
  const Difference& difference = result.difference;
  json["difference"] = {{"step", difference.step},
                        {"what", result.first.what},
                        {"tensor", result.first.tensor},
                        {"layer", result.first.layer},
                        {"text", ToString(difference, result.first)},
                        {"loss", difference.loss_is},  // not a number: null
                        {"baseline_loss", difference.loss_was},
                        {"gradients", difference.gradients},
                        {"masters", difference.masters}};
  return json;
}

}  // namespace

std::string ResultText(const VariantResult& result) {
  switch (result.outcome) {
    case Outcome::kSame:
      return result.is_baseline ? "the baseline" : "same bits";
    case Outcome::kDifferent:
      return absl::StrCat("DIFFERS: ", ToString(result.difference, result.first));
    case Outcome::kSkipped:
      return absl::StrCat("skipped: ", result.why);
    case Outcome::kFailed:
      return absl::StrCat("FAILED: ", result.why);
  }
  return "";
}

std::string VerifyJson(const std::vector<VariantResult>& results, bool same, const std::string& kept_folder) {
  nlohmann::ordered_json json = {{"same", same}, {"variants", nlohmann::ordered_json::array()}, {"kept", kept_folder}};
  for (const VariantResult& result : results) json["variants"].push_back(ToJson(result));
  return json.dump(2);
}

VerifyPrinter::VerifyPrinter(const std::vector<Variant>& variants, bool json)
    : json_(json), colours_(isatty(STDOUT_FILENO) == 1), progress_(isatty(STDERR_FILENO) == 1) {
  for (const Variant& variant : variants) {
    names_.push_back(variant.name);
    name_width_ = std::max(name_width_, static_cast<int>(variant.name.size()));
  }
}

void VerifyPrinter::Progress(size_t index, int64_t step, int64_t steps) {
  if (!progress_) return;
  std::fprintf(stderr, "\r\033[K[%zu/%zu] %s: step %lld of %lld", index + 1, names_.size(), names_[index].c_str(),
               static_cast<long long>(step), static_cast<long long>(steps));
  std::fflush(stderr);
  line_open_ = true;
}

void VerifyPrinter::ClearProgress() {
  if (line_open_) std::fprintf(stderr, "\r\033[K");
  std::fflush(stderr);
  line_open_ = false;
}

void VerifyPrinter::Add(const VariantResult& result) {
  ClearProgress();
  results_.push_back(result);
  if (json_) return;
  if (results_.size() == 1)
    std::printf("%-*s  %5s %8s %9s %9s\n", name_width_, "", "steps", "tensors", "seconds", "counted/s");
  const std::string figures = result.steps > 0 ? absl::StrFormat("%5d %8d %9.2f %9.0f", result.steps, result.tensors,
                                                                 result.seconds, TokensPerSecond(result))
                                               : absl::StrFormat("%5s %8s %9s %9s", "-", "-", "-", "-");
  const bool colours = colours_ && *Colour(result) != '\0';
  std::printf("%-*s  %s  %s%s%s\n", name_width_, result.name.c_str(), figures.c_str(), colours ? Colour(result) : "",
              ResultText(result).c_str(), colours ? "\033[0m" : "");
  std::fflush(stdout);
}

void VerifyPrinter::End(bool same, const std::string& kept_folder) {
  if (json_) {
    std::printf("%s\n", VerifyJson(results_, same, kept_folder).c_str());
    return;
  }
  int compared = 0, skipped = 0;
  for (const VariantResult& result : results_) {
    if (result.outcome == Outcome::kSkipped) ++skipped;
    if (!result.is_baseline && result.outcome != Outcome::kSkipped) ++compared;
  }
  std::printf("eps: %s in %d %s%s", same ? "the same bits" : "NOT the same bits", compared,
              compared == 1 ? "comparison" : "comparisons",
              skipped > 0 ? absl::StrCat(", ", skipped, " skipped").c_str() : "");
  if (!kept_folder.empty()) std::printf("; logs and digests are in %s", kept_folder.c_str());
  std::printf("\n");
}

}  // namespace eps::cli
