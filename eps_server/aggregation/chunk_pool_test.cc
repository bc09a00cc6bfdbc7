#include "eps_server/aggregation/chunk_pool.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps::server {
namespace {

TEST(ChunkPoolTest, CountsWholePagesAndReusesThem) {
  const auto pool = ChunkPool::Create(1 << 20);
  const std::byte* first = nullptr;
  {
    ASSERT_OK_AND_ASSIGN(ChunkBuffer buffer, pool->Take(5000));
    first = buffer.data();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % 64, 0u);
    EXPECT_EQ(pool->held_bytes(), 8192);
    const ChunkBuffer moved = std::move(buffer);
    EXPECT_EQ(pool->held_bytes(), 8192);
  }
  EXPECT_EQ(pool->held_bytes(), 0);
  EXPECT_EQ(pool->mapped_bytes(), 8192);
  ASSERT_OK_AND_ASSIGN(const ChunkBuffer again, pool->Take(8000));
  EXPECT_EQ(again.data(), first);
}

TEST(ChunkPoolTest, KeepsNoMoreThanAllowed) {
  const auto pool = ChunkPool::Create(8192);
  { ASSERT_OK_AND_ASSIGN(const ChunkBuffer buffer, pool->Take(1 << 20)); }
  EXPECT_EQ(pool->mapped_bytes(), 0);
  { ASSERT_OK_AND_ASSIGN(const ChunkBuffer buffer, pool->Take(4096)); }
  EXPECT_EQ(pool->mapped_bytes(), 4096);
  // The spare page makes room for a size that it does not fit.
  ASSERT_OK_AND_ASSIGN(const ChunkBuffer buffer, pool->Take(8192));
  EXPECT_EQ(pool->mapped_bytes(), 8192);
}

TEST(ChunkPoolTest, WhatIsLentIsGivenBackOnceAndCostsThePoolNothing) {
  const auto pool = ChunkPool::Create(1 << 20);
  alignas(64) static constexpr std::byte kBytes[64] = {};
  int times_given_back = 0;
  {
    ChunkBuffer buffer =
        ChunkBuffer::Lent(std::shared_ptr<const std::byte>(kBytes, [&](const std::byte*) { ++times_given_back; }));
    EXPECT_EQ(buffer.data(), kBytes);
    ChunkBuffer moved = std::move(buffer);
    EXPECT_EQ(moved.data(), kBytes);
    EXPECT_EQ(times_given_back, 0);
    EXPECT_EQ(pool->held_bytes(), 0);
    ASSERT_OK_AND_ASSIGN(moved, pool->Take(4096));
    EXPECT_EQ(times_given_back, 1);
    EXPECT_EQ(pool->held_bytes(), 4096);
  }
  EXPECT_EQ(times_given_back, 1);
  EXPECT_EQ(pool->held_bytes(), 0);
}

TEST(ChunkPoolTest, BuffersOutliveTheOwnersReference) {
  auto pool = ChunkPool::Create(1 << 20);
  ASSERT_OK_AND_ASSIGN(const ChunkBuffer buffer, pool->Take(4096));
  pool.reset();
  buffer.writable_data()[0] = std::byte{1};
}

}  // namespace
}  // namespace eps::server
