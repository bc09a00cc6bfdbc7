#ifndef EPS_COMMON_TELEMETRY_RESIDENT_BYTES_H_
#define EPS_COMMON_TELEMETRY_RESIDENT_BYTES_H_

#include <cstdint>

namespace eps {

// What this process holds in DRAM now, shared pages counted; 0 where the system does not say.
int64_t ResidentBytes();

}  // namespace eps

#endif  // EPS_COMMON_TELEMETRY_RESIDENT_BYTES_H_
