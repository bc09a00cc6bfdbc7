#ifndef EPS_CLI_VERIFY_VARIANTS_H_
#define EPS_CLI_VERIFY_VARIANTS_H_

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/run_config.h"

namespace eps::cli {

enum class VerifyTopic { kRelay, kRecompute, kSwap, kWorkers, kTransport };

// One way to carry a run out; none changes bits.
struct Variant {
  std::string name;              // for people: "everything resident"
  std::vector<std::string> set;  // FIELD=VALUE over the RunSpec's; fields that change no bits
  int workers = 1;
  int64_t device_memory_bytes = 0;  // the cap; 0: none is given
  std::string skipped;              // why it is left out; "": it is not
  // A worker's log must have this event, or the variant did the same as the baseline and is skipped with
  // `why_without_proof`. "": it is always compared.
  std::string proof, why_without_proof;
};

struct VariantRequest {
  RunConfig run;
  std::string device = "cpu";
  int64_t device_memory_bytes = 0;  // the cap; 0: none is given
  int64_t host_memory_bytes = 0;    // WholePlanRequest's, as the next one
  std::string profile = {};
  int workers = 2;               // of the variant with several
  std::set<VerifyTopic> topics;  // empty: all
};

// The baseline, one worker and the run as it is, and what is compared with it. One that would be the baseline over
// again is not among them; one that cannot be is, with its reason. Arithmetic alone.
//
// Errors: INVALID_ARGUMENT more workers than virtual nodes · MakeWholePlan's of the baseline: RESOURCE_EXHAUSTED names
// the smallest cap that would do
absl::StatusOr<std::vector<Variant>> PlanVariants(const VariantRequest& request);

}  // namespace eps::cli

#endif  // EPS_CLI_VERIFY_VARIANTS_H_
