#ifndef EPS_COMMON_GRPC_EXPIRY_WARNING_H_
#define EPS_COMMON_GRPC_EXPIRY_WARNING_H_

#include <string>

#include "absl/time/time.h"
#include "common/base/log.h"
#include "common/grpc/keys_state.h"

namespace eps {

// Warns in the log of a certificate that ends soon, or has.
inline void WarnIfExpiresSoon(const std::string& file, absl::Time expires, absl::Time now) {
  if (expires - now > kExpiresSoon) return;
  if (expires <= now) return LogError("certificate_expired", {{"file", file}});
  LogWarning("certificate_expires_soon", {{"file", file}, {"hours_left", absl::ToInt64Hours(expires - now)}});
}

}  // namespace eps

#endif  // EPS_COMMON_GRPC_EXPIRY_WARNING_H_
