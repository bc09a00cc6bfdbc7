#ifndef EPS_BENCH_SUPPORT_H_
#define EPS_BENCH_SUPPORT_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace eps::bench {

// Written once, in huge pages where the system has them, as the store's and the arena's memory is. Never given back.
absl::Span<std::byte> NewMemory(int64_t num_bytes);

// The other side of a benchmark, in a process of its own, which ends with this one.
struct Peer {
  pid_t pid = 0;
  std::vector<std::string> lines;  // that it wrote, such as its addresses
};

// Forks, so that it comes before anything that has threads. In the child: calls `serve` with a descriptor to write
// `num_lines` lines to, and ends when it returns.
Peer StartPeer(int num_lines, const std::function<void(int)>& serve);

// Asks it to end by SIGTERM, and waits.
void EndPeer(const Peer& peer);

}  // namespace eps::bench

#endif  // EPS_BENCH_SUPPORT_H_
