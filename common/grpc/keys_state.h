#ifndef EPS_COMMON_GRPC_KEYS_STATE_H_
#define EPS_COMMON_GRPC_KEYS_STATE_H_

#include <string>

#include "absl/time/time.h"

namespace eps {

// How the keys of a daemon's doors are, for who watches it.
struct KeysState {
  // When the first of its certificates ends (ServerCertificates); InfiniteFuture: it has none.
  absl::Time expires = absl::InfiniteFuture();
  // Why files that have changed are not in use, and what was there before goes on; "": they are.
  std::string not_reloaded = "";
};

// A certificate that ends within so long is warned of.
inline constexpr absl::Duration kExpiresSoon = absl::Hours(14 * 24);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_KEYS_STATE_H_
