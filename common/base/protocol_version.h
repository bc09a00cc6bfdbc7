#ifndef EPS_COMMON_BASE_PROTOCOL_VERSION_H_
#define EPS_COMMON_BASE_PROTOCOL_VERSION_H_

#include <cstdint>

namespace eps {

// What a worker and a daemon must agree on: control.proto, data_plane.proto, the chunk header, and what the
// messages mean. Raised whenever one of them changes in a way that an older program would misunderstand.
inline constexpr uint32_t kProtocolVersion = 9;

}  // namespace eps

#endif  // EPS_COMMON_BASE_PROTOCOL_VERSION_H_
