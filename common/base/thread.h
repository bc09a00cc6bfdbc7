#ifndef EPS_COMMON_BASE_THREAD_H_
#define EPS_COMMON_BASE_THREAD_H_

#include <functional>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eps {

// A thread of a process that has long been running, where the system may allow no more of them.
// Errors: UNAVAILABLE, with the system's reason
absl::StatusOr<std::thread> StartThread(std::function<void()> run);

// Whether this process may start `threads` more at once; call it before the first one. Libraries that cannot start a
// thread end the process with a signal, or wait for what never comes, and neither tells why.
// Errors: UNAVAILABLE saying how many there may be, and which limits to raise
absl::Status CheckThreadRoom(int threads);

}  // namespace eps

#endif  // EPS_COMMON_BASE_THREAD_H_
