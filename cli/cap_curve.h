#ifndef EPS_CLI_CAP_CURVE_H_
#define EPS_CLI_CAP_CURVE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/whole_plan.h"

namespace eps::cli {

// A step's seconds, predicted, under one cap.
struct CapPoint {
  int64_t cap_bytes = 0;
  double planned = 0;
  // With every inner activation recomputed, and with every one swapped, as far as --host-memory reaches; nothing
  // without.
  std::optional<double> recomputed, swapped;
};

// From the smallest cap to what a plan can use, in steps of equal size, on all cores. `on_progress` is told how many
// points there are, one call at a time. Errors: MakeWholePlan's
absl::StatusOr<std::vector<CapPoint>> CapCurve(const WholePlanRequest& request,
                                               const std::function<void(size_t done, size_t all)>& on_progress);

std::string CapCurveSvg(const std::string& title, const std::vector<CapPoint>& points);

}  // namespace eps::cli

#endif  // EPS_CLI_CAP_CURVE_H_
