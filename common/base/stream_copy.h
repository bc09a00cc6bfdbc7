#ifndef EPS_COMMON_BASE_STREAM_COPY_H_
#define EPS_COMMON_BASE_STREAM_COPY_H_

#include <cstddef>

namespace eps {

// memcpy past the cache, for destinations much larger than it: lines that are written whole are not read first, and
// what others have in the cache stays. On machines without such stores it is memcpy.
void StreamCopy(std::byte* destination, const std::byte* source, size_t num_bytes);

}  // namespace eps

#endif  // EPS_COMMON_BASE_STREAM_COPY_H_
