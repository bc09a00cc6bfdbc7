#ifndef EPS_COMMON_BASE_PARALLEL_FOR_H_
#define EPS_COMMON_BASE_PARALLEL_FOR_H_

#include <cstddef>
#include <functional>

namespace eps {

// Calls work(i) of each i below `count` once, in any order, on as many threads as there are cores (fewer where the system
// allows no more), the calling one among them, and returns when all are done. For work of many milliseconds each.
// `on_done` is told how many are done, from 1 to count: one call at a time, in this order, on any of the threads.
void ParallelFor(size_t count, const std::function<void(size_t)>& work,
                 const std::function<void(size_t)>& on_done = {});

}  // namespace eps

#endif  // EPS_COMMON_BASE_PARALLEL_FOR_H_
