#ifndef EPS_COMMON_GRPC_PAGE_ADVICE_H_
#define EPS_COMMON_GRPC_PAGE_ADVICE_H_

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace eps {

// What to add to the error of a daemon that was not reached: that what answered is an HTTP server, as the run's page is,
// whose address is the only one that `eps train` prints. "" where it is not.
inline absl::string_view PageAdvice(const absl::Status& not_reached) {
  if (!absl::StrContains(not_reached.message(), "http1.x server")) return "";  // gRPC's words for it
  return "; that is a page for browsers, as the run's own: the daemon's address is `grpc` in the run's endpoints.json";
}

}  // namespace eps

#endif  // EPS_COMMON_GRPC_PAGE_ADVICE_H_
