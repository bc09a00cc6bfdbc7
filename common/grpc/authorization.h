#ifndef EPS_COMMON_GRPC_AUTHORIZATION_H_
#define EPS_COMMON_GRPC_AUTHORIZATION_H_

#include "absl/strings/string_view.h"

namespace eps {

// How a token travels (RFC 6750): this header of a call, with this before the token.
inline constexpr char kAuthorizationHeader[] = "authorization";
inline constexpr absl::string_view kBearer = "Bearer ";

}  // namespace eps

#endif  // EPS_COMMON_GRPC_AUTHORIZATION_H_
