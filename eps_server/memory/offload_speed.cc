#include "eps_server/memory/offload_speed.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/anonymous_memory.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/thread.h"
#include "eps_server/store/paged_memory.h"
#include "eps_server/store/scratch_file.h"

namespace eps::server {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kPageBytes = int64_t{5} << 19;
constexpr int64_t kMostPages = 400;
constexpr double kSeconds = 1;  // of filling the file at most, and of what is measured

double SecondsSince(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

// Calls move(i) of i = 0, 1, .. from several threads at once, until `count` or kSeconds are over. Returns the bytes that
// were moved a second, of which each call moves call_bytes.
template <typename Move>
absl::StatusOr<double> MoveForAWhile(int64_t count, int64_t call_bytes, const Move& move, int64_t* done = nullptr) {
  std::atomic<int64_t> next = 0, moved = 0;
  Mutex mu;
  absl::Status status;  // under mu
  const Clock::time_point begin = Clock::now();
  const auto run = [&](int thread) {
    while (SecondsSince(begin) < kSeconds) {
      const int64_t i = next++;
      if (i >= count) return;
      if (absl::Status result = move(i, thread); !result.ok()) {
        MutexLock lock(mu);
        status.Update(result);
        return;
      }
      ++moved;
    }
  };
  std::vector<std::thread> threads;
  for (int t = 1; t < kPageMovers; ++t) {
    absl::StatusOr<std::thread> thread = StartThread([&run, t] { run(t); });
    if (!thread.ok()) break;  // those that there are do it all
    threads.push_back(*std::move(thread));
  }
  run(0);
  for (std::thread& thread : threads) thread.join();
  const double seconds = SecondsSince(begin);
  EPS_RETURN_IF_ERROR(status);
  if (done != nullptr) *done = moved;
  return static_cast<double>(moved * call_bytes) / seconds;
}

}  // namespace

absl::StatusOr<double> MeasureOffloadBytesPerSecond(const std::string& folder, int64_t most_bytes) {
  const int64_t most_pages = std::clamp<int64_t>(most_bytes / kPageBytes, 1, kMostPages);
  EPS_ASSIGN_OR_RETURN(const ScratchFile file, ScratchFile::Create(folder, most_pages * kPageBytes));
  if (!file.is_direct()) {
    return absl::FailedPreconditionError(
        absl::StrCat("files in \"", folder, "\" are read and written through the page cache alone"));
  }
  EPS_ASSIGN_OR_RETURN(const AnonymousMemory memory,
                       AnonymousMemory::Map(kPageMovers * kPageBytes, "measuring a disk"));
  std::memset(memory.base(), 0x5A, static_cast<size_t>(memory.num_bytes()));
  const auto buffer = [&](int thread) {
    return absl::MakeSpan(memory.base() + thread * kPageBytes, static_cast<size_t>(kPageBytes));
  };
  // What was never written is not read from the disk.
  int64_t pages = 0;
  EPS_RETURN_IF_ERROR(MoveForAWhile(
                          most_pages, kPageBytes,
                          [&](int64_t page, int thread) { return file.Write(page * kPageBytes, buffer(thread)); },
                          &pages)
                          .status());
  if (pages == 0) return absl::UnavailableError(absl::StrCat("nothing was written in \"", folder, "\" in a second"));
  return MoveForAWhile(INT64_MAX, 2 * kPageBytes, [&](int64_t turn, int thread) {
    const int64_t offset_bytes = turn % pages * kPageBytes;
    EPS_RETURN_IF_ERROR(file.Read(offset_bytes, buffer(thread)));
    return file.Write(offset_bytes, buffer(thread));
  });
}

}  // namespace eps::server
