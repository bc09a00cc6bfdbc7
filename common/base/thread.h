#ifndef EPS_COMMON_BASE_THREAD_H_
#define EPS_COMMON_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/statusor.h"

namespace eps {

// A thread of a process that has long been running, where the system may allow no more of them.
// Errors: UNAVAILABLE, with the system's reason
absl::StatusOr<std::thread> StartThread(std::function<void()> run);

}  // namespace eps

#endif  // EPS_COMMON_BASE_THREAD_H_
