#ifndef EPS_COMMON_SPEC_DATA_CHECK_H_
#define EPS_COMMON_SPEC_DATA_CHECK_H_

#include "common/spec/check_context.h"
#include "common/spec/checker.h"
#include "common/spec/run_config.h"
#include "proto/run_spec.pb.h"

namespace eps {

// RunSpec's data and evaluation, from the proto and back: files, how they become tokens, and what of them is counted.
//
// Errors: in `check`, naming the field; `out` is then filled in part only

// One file. run: its model.
void CheckData(proto::Data data, const RunConfig& run, const CheckContext& context, Checker& check, DataConfig& out);

// data.sources, at least one, into config.sources, and what they share into config.data. config: its model.
void CheckSources(const proto::Data& data, const CheckContext& context, Checker& check, RunConfig& config);

// data: as the RunSpec has it. config: its model and its data, checked; where there are sources, the evaluation's data
// are as the first one's.
void CheckEvaluation(const proto::Evaluation& evaluation, const proto::Data& data, const RunConfig& config,
                     const CheckContext& context, Checker& check, EvaluationConfig& out);

// One file, `data`. run: its model.
void WriteData(const RunConfig& run, const DataConfig& data, proto::Data& out);

// run.sources, in place of what `out` says of a file.
// What is the same for all of them stands in `out`.
void WriteSources(const RunConfig& run, proto::Data& out);

// evaluation: one that is on.
void WriteEvaluation(const EvaluationConfig& evaluation, proto::Evaluation& out);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_DATA_CHECK_H_
