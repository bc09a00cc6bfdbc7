#ifndef EPS_COMMON_SPEC_SPEC_WARNINGS_H_
#define EPS_COMMON_SPEC_SPEC_WARNINGS_H_

#include <string>
#include <vector>

#include "common/spec/run_config.h"

namespace eps {

struct SpecWarning {
  std::string field;
  std::string why;
};

// What a run may say, and hardly anybody means: schedules of steps that it has not, a rate that rises as it decays, adapters
// that are no smaller than what they are beside.
std::vector<SpecWarning> FindSpecWarnings(const RunConfig& run);

}  // namespace eps

#endif  // EPS_COMMON_SPEC_SPEC_WARNINGS_H_
