#ifndef EPS_SERVER_REPORT_LOSS_SVG_H_
#define EPS_SERVER_REPORT_LOSS_SVG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace eps::server {

// A drawing of the loss of each step: the raw values thin, a moving mean over them, axes with ticks, a title. Readable on
// light and on dark ground. Values that are not numbers are gaps.
std::string LossSvg(absl::Span<const double> losses);

// Mean of the finite values within `radius` places, for each place; NaN where there is none.
std::vector<double> MovingMean(absl::Span<const double> values, int64_t radius);

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_LOSS_SVG_H_
