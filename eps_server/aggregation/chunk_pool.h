#ifndef EPS_SERVER_AGGREGATION_CHUNK_POOL_H_
#define EPS_SERVER_AGGREGATION_CHUNK_POOL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/byte_size.h"
#include "common/base/mutex.h"

namespace eps::server {

class ChunkPool;

// Memory of one contribution to one chunk: of a pool, page-aligned, back to it when destroyed; or lent by whoever keeps it
// unchanged until then.
class ChunkBuffer {
 public:
  ChunkBuffer() = default;
  // lent: 64-byte aligned; never written
  static ChunkBuffer Lent(std::shared_ptr<const std::byte> lent);
  ChunkBuffer(ChunkBuffer&& other) noexcept;
  ChunkBuffer& operator=(ChunkBuffer&& other) noexcept;
  ~ChunkBuffer();

  const std::byte* data() const { return data_; }
  // Of one of a pool.
  std::byte* writable_data() const;

 private:
  friend class ChunkPool;
  ChunkBuffer(std::shared_ptr<ChunkPool> pool, std::byte* data, int64_t num_bytes);
  void Release();

  std::shared_ptr<ChunkPool> pool_;  // null: lent
  std::shared_ptr<const std::byte> lent_;
  const std::byte* data_ = nullptr;
  int64_t num_bytes_ = 0;
};

// Memory for contributions: whole pages straight from the system, kept for reuse up to `keep_bytes`
// in all, so that what the process holds is what is counted. Chunks come in few sizes, the same
// ones every step.
//
// Threads: safe.
class ChunkPool : public std::enable_shared_from_this<ChunkPool> {
 public:
  static std::shared_ptr<ChunkPool> Create(int64_t keep_bytes);
  ~ChunkPool();

  // What a buffer of num_bytes costs: whole pages.
  static int64_t CostBytes(int64_t num_bytes) { return RoundUp(num_bytes, kPageBytes); }

  // Errors: RESOURCE_EXHAUSTED
  absl::StatusOr<ChunkBuffer> Take(int64_t num_bytes);

  int64_t held_bytes() const;    // in buffers
  int64_t mapped_bytes() const;  // in buffers and kept for reuse

 private:
  friend class ChunkBuffer;
  static constexpr int64_t kPageBytes = 4096;

  explicit ChunkPool(int64_t keep_bytes) : keep_bytes_(keep_bytes) {}
  void Return(std::byte* data, int64_t num_bytes);
  void UnmapSpare(int64_t wanted_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const int64_t keep_bytes_;
  mutable Mutex mu_;
  std::map<int64_t, std::vector<std::byte*>> spare_ ABSL_GUARDED_BY(mu_);  // by size
  int64_t held_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t spare_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_CHUNK_POOL_H_
