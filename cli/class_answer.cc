#include "cli/class_answer.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace eps::cli {

absl::StatusOr<std::string> ClassLine(const ModelConfig& config, const proto::GenerateReply& reply) {
  const auto& logits = reply.class_logits();
  if (logits.empty() || logits.size() != config.num_classes) {
    return absl::InternalError(absl::StrCat("the daemon answered with logits of ", logits.size(),
                                            " classes; the model has ", config.num_classes));
  }
  if (reply.token() < 0 || reply.token() >= logits.size()) {
    return absl::InternalError(absl::StrCat("the daemon answered with class ", reply.token(), "; the model has ",
                                            config.num_classes, ", from 0 on"));
  }
  const float largest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  const auto number = static_cast<size_t>(reply.token());
  const std::string name =
      number < config.class_names.size() ? absl::Utf8SafeCEscape(config.class_names[number]) : absl::StrCat(number);
  const double likelihood = std::exp(static_cast<double>(logits[reply.token()]) - largest) / sum;
  char digits[16];
  std::snprintf(digits, sizeof digits, "%.4f", likelihood);
  return absl::StrCat(name, "\t", digits, "\n");
}

}  // namespace eps::cli
