#include "bench/support.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"

namespace eps::bench {

absl::Span<std::byte> NewMemory(int64_t num_bytes) {
  constexpr int64_t kHugePage = 2 << 20;
  const size_t rounded = static_cast<size_t>((num_bytes + kHugePage - 1) / kHugePage * kHugePage);
  void* memory = std::aligned_alloc(kHugePage, rounded);
  EPS_CHECK(memory != nullptr);
  madvise(memory, rounded, MADV_HUGEPAGE);
  std::memset(memory, 1, rounded);
  return absl::MakeSpan(static_cast<std::byte*>(memory), static_cast<size_t>(num_bytes));
}

Peer StartPeer(int num_lines, const std::function<void(int)>& serve) {
  int fds[2];
  EPS_CHECK(pipe(fds) == 0);
  Peer peer;
  peer.pid = fork();
  EPS_CHECK(peer.pid >= 0);
  if (peer.pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    close(fds[0]);
    serve(fds[1]);
    std::exit(0);
  }
  close(fds[1]);  // so that a peer that ends early is not waited for
  std::string text;
  while (std::count(text.begin(), text.end(), '\n') < num_lines) {
    char buffer[256];
    const ssize_t got = read(fds[0], buffer, sizeof(buffer));
    EPS_CHECK(got > 0);
    text.append(buffer, static_cast<size_t>(got));
  }
  close(fds[0]);
  peer.lines = absl::StrSplit(text, '\n', absl::SkipEmpty());
  return peer;
}

void EndPeer(const Peer& peer) {
  kill(peer.pid, SIGTERM);
  waitpid(peer.pid, nullptr, 0);
}

}  // namespace eps::bench
