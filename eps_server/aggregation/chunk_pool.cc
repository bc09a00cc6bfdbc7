#include "eps_server/aggregation/chunk_pool.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace eps::server {

ChunkBuffer::ChunkBuffer(std::shared_ptr<ChunkPool> pool, std::byte* data, int64_t num_bytes)
    : pool_(std::move(pool)), data_(data), num_bytes_(num_bytes) {}

ChunkBuffer ChunkBuffer::Lent(std::shared_ptr<const std::byte> lent) {
  ChunkBuffer buffer;
  buffer.data_ = lent.get();
  buffer.lent_ = std::move(lent);
  return buffer;
}

std::byte* ChunkBuffer::writable_data() const {
  EPS_CHECK(pool_ != nullptr);
  return const_cast<std::byte*>(data_);
}

ChunkBuffer::ChunkBuffer(ChunkBuffer&& other) noexcept
    : pool_(std::move(other.pool_)),
      lent_(std::move(other.lent_)),
      data_(std::exchange(other.data_, nullptr)),
      num_bytes_(std::exchange(other.num_bytes_, 0)) {}

ChunkBuffer& ChunkBuffer::operator=(ChunkBuffer&& other) noexcept {
  if (this != &other) {
    Release();
    pool_ = std::move(other.pool_);
    lent_ = std::move(other.lent_);
    data_ = std::exchange(other.data_, nullptr);
    num_bytes_ = std::exchange(other.num_bytes_, 0);
  }
  return *this;
}

ChunkBuffer::~ChunkBuffer() { Release(); }

void ChunkBuffer::Release() {
  if (pool_ != nullptr) pool_->Return(writable_data(), std::exchange(num_bytes_, 0));
  data_ = nullptr;
  pool_.reset();
  lent_.reset();
}

std::shared_ptr<ChunkPool> ChunkPool::Create(int64_t keep_bytes) {
  return std::shared_ptr<ChunkPool>(new ChunkPool(keep_bytes));
}

ChunkPool::~ChunkPool() {
  MutexLock lock(mu_);
  UnmapSpare(spare_bytes_);
}

absl::StatusOr<ChunkBuffer> ChunkPool::Take(int64_t num_bytes) {
  const int64_t cost = CostBytes(num_bytes);
  MutexLock lock(mu_);
  std::vector<std::byte*>& spare = spare_[cost];
  std::byte* data = nullptr;
  if (!spare.empty()) {
    data = spare.back();
    spare.pop_back();
    spare_bytes_ -= cost;
  } else {
    // Spares of other sizes make room first: the sum stays within keep_bytes wherever the buffers
    // alone do.
    UnmapSpare(held_bytes_ + spare_bytes_ + cost - keep_bytes_);
    void* mapped = mmap(nullptr, static_cast<size_t>(cost), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("a contribution needs ", cost, " bytes of memory: ", strerror(errno)));
    }
    data = static_cast<std::byte*>(mapped);
  }
  held_bytes_ += cost;
  return ChunkBuffer(shared_from_this(), data, cost);
}

void ChunkPool::Return(std::byte* data, int64_t num_bytes) {
  MutexLock lock(mu_);
  held_bytes_ -= num_bytes;
  if (held_bytes_ + spare_bytes_ + num_bytes > keep_bytes_) {
    munmap(data, static_cast<size_t>(num_bytes));
    return;
  }
  spare_[num_bytes].push_back(data);
  spare_bytes_ += num_bytes;
}

void ChunkPool::UnmapSpare(int64_t wanted_bytes) {
  for (auto& [num_bytes, spare] : spare_) {
    while (wanted_bytes > 0 && !spare.empty()) {
      munmap(spare.back(), static_cast<size_t>(num_bytes));
      spare.pop_back();
      spare_bytes_ -= num_bytes;
      wanted_bytes -= num_bytes;
    }
  }
}

int64_t ChunkPool::held_bytes() const {
  MutexLock lock(mu_);
  return held_bytes_;
}

int64_t ChunkPool::mapped_bytes() const {
  MutexLock lock(mu_);
  return held_bytes_ + spare_bytes_;
}

}  // namespace eps::server
