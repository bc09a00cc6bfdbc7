#ifndef EPS_COMMON_SPEC_RUN_SPEC_TEXT_H_
#define EPS_COMMON_SPEC_RUN_SPEC_TEXT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/spec/run_config.h"
#include "proto/run_spec.pb.h"

namespace eps {

// Text -> RunSpec: names, types and enum values are checked, ranges are not.
//
// Errors: INVALID_ARGUMENT "file_name:line:column: model.layers: what is wrong" for textproto;
// "model.layers: what is wrong" for JSON, or line and column where it is none
absl::StatusOr<proto::RunSpec> RunSpecFromTextproto(const std::string& text, const std::string& file_name);
absl::StatusOr<proto::RunSpec> RunSpecFromJson(const std::string& text);

// Errors: INVALID_ARGUMENT naming the path and, where a name is unknown, the known ones
absl::Status ApplyOverride(const FieldOverride& field, proto::RunSpec& spec);

// Every present field on its own line; doubles are written so that they are read back exactly.
std::string RunSpecToTextproto(const proto::RunSpec& spec);

// The leaves that differ, as "batch.micro_batch: was 4, now 2"; the top-level fields in `skipped`
// are not looked at.
std::vector<std::string> RunSpecDifferences(const proto::RunSpec& was, const proto::RunSpec& now,
                                            const std::vector<std::string>& skipped);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_RUN_SPEC_TEXT_H_
