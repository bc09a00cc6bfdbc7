#ifndef EPS_SERVER_REPORT_SUMMARY_H_
#define EPS_SERVER_REPORT_SUMMARY_H_

#include <string>
#include <vector>

#include "eps_server/step/run_status.h"

namespace eps::server {

// summary.json of a run that has ended. `losses` are each step's, from 0; `seconds_before` is the training time of
// earlier sittings.
std::string SummaryJson(const RunStatus& status, const std::vector<double>& losses, double seconds_before);

}  // namespace eps::server

#endif  // EPS_SERVER_REPORT_SUMMARY_H_
