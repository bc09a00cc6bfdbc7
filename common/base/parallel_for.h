#ifndef EPS_COMMON_BASE_PARALLEL_FOR_H_
#define EPS_COMMON_BASE_PARALLEL_FOR_H_

#include <cstddef>
#include <functional>

namespace eps {

// Calls work(i) of each i below `count` once, in any order, on as many threads as there are cores (fewer where the system
// allows no more), the calling one among them, and returns when all are done. For work of many milliseconds each.
void ParallelFor(size_t count, const std::function<void(size_t)>& work);

}  // namespace eps

#endif  // EPS_COMMON_BASE_PARALLEL_FOR_H_
