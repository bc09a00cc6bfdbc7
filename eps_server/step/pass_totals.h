#ifndef EPS_SERVER_STEP_PASS_TOTALS_H_
#define EPS_SERVER_STEP_PASS_TOTALS_H_

#include <map>
#include <string>

#include "eps_server/membership/membership.h"

namespace eps::server {

// Where the workers' time went, over some passes.
struct PassTotals {
  double seconds = 0;
  std::map<std::string, double> wait_seconds;  // of these, in which compute waited, by cause

  void Add(const PassTiming& timing) {
    seconds += timing.seconds;
    for (const auto& [cause, waited] : timing.wait_seconds) wait_seconds[cause] += waited;
  }
  void Add(const PassTotals& more) {
    seconds += more.seconds;
    for (const auto& [cause, waited] : more.wait_seconds) wait_seconds[cause] += waited;
  }
  // Of `seconds`, by cause.
  std::map<std::string, double> Fractions() const {
    std::map<std::string, double> fractions;
    for (const auto& [cause, waited] : wait_seconds) fractions[cause] = seconds > 0 ? waited / seconds : 0;
    return fractions;
  }
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_PASS_TOTALS_H_
