#ifndef EPS_COMMON_BASE_OPEN_FILES_H_
#define EPS_COMMON_BASE_OPEN_FILES_H_

#include <algorithm>
#include <cstdint>

// How many files a process may come to have open at once. A daemon asks the system for them when it starts, and `eps doctor`
// says beforehand whether the system will agree.
namespace eps {

inline constexpr int64_t kMinConnections = 1024;
inline constexpr int64_t kConnectionsPerWorker = 8;  // a worker has four; as many again while it attaches anew
inline constexpr int64_t kOtherFiles = 256;          // data, checkpoints, logs, libraries' own
// Of those workers that use shared memory: each a socket, an inbox and an eventfd.
inline constexpr int64_t kSharedMemoryConnections = 256;
inline constexpr int64_t kFilesPerSharedMemory = 3;

// The most connections at once of a daemon that is told no other number, and the fewest with which it starts.
constexpr int64_t DefaultConnections(int64_t expected_workers) {
  return std::max(kMinConnections, kConnectionsPerWorker * expected_workers);
}
constexpr int64_t LeastConnections(int64_t expected_workers) { return kConnectionsPerWorker * expected_workers; }

constexpr int64_t NeededOpenFiles(int64_t max_connections) {
  return max_connections + kFilesPerSharedMemory * std::min(max_connections, kSharedMemoryConnections) + kOtherFiles;
}
// The most connections whose NeededOpenFiles are at most `files`; may be negative.
constexpr int64_t ConnectionsWithin(int64_t files) {
  const int64_t left = files - kOtherFiles;
  return std::min(left / (1 + kFilesPerSharedMemory), kSharedMemoryConnections) +
         std::max<int64_t>(0, left - (1 + kFilesPerSharedMemory) * kSharedMemoryConnections);
}

// Of a worker: its connections, the daemon's shared memory and inbox, logs, a device's.
inline constexpr int64_t kFilesOfAWorker = 64;

}  // namespace eps

#endif  // EPS_COMMON_BASE_OPEN_FILES_H_
