#ifndef EPS_CLI_CLASS_ANSWER_H_
#define EPS_CLI_CLASS_ANSWER_H_

#include <string>

#include "absl/status/statusor.h"
#include "common/model/model_spec.h"
#include "proto/control.pb.h"

namespace eps::cli {

// What is printed of a classifier's answer: the likeliest class, a tab, and how likely it is, by softmax.
// Errors: INTERNAL the answer is not of as many classes as the model has
absl::StatusOr<std::string> ClassLine(const ModelConfig& config, const proto::GenerateReply& reply);

}  // namespace eps::cli

#endif  // EPS_CLI_CLASS_ANSWER_H_
