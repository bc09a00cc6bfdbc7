#include "common/formats/sparse_chunk.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model_spec.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ByteVector = std::vector<std::byte>;

// `lines` lines, of which each is zero with a likelihood of `zeros`; the others have a single byte that is none, anywhere.
ByteVector RandomChunk(int64_t lines, double zeros, std::mt19937& random) {
  ByteVector chunk(lines * kLineBytes);
  for (int64_t line = 0; line < lines; ++line) {
    if (std::uniform_real_distribution<>()(random) < zeros) continue;
    chunk[line * kLineBytes + random() % kLineBytes] = static_cast<std::byte>(1 + random() % 255);
  }
  return chunk;
}

// What a receiver of `packed` has: it at the end of a chunk whose other bytes are anything.
absl::StatusOr<ByteVector> Unpacked(const ByteVector& packed, int64_t num_bytes) {
  ByteVector chunk(num_bytes, std::byte{0xEE});
  std::copy_n(packed.begin(), std::min<int64_t>(packed.size(), num_bytes),
              chunk.end() - std::min<int64_t>(packed.size(), num_bytes));
  const absl::Status status = UnpackSparseChunk(absl::MakeSpan(chunk), static_cast<int64_t>(packed.size()));
  if (!status.ok()) return status;
  return chunk;
}

TEST(SparseChunkTest, WhatIsPackedIsUnpackedByteForByte) {
  std::mt19937 random(3);
  for (const int64_t lines : {8, 9, 64, 100, 4095, 16384}) {
    for (const double zeros : {0.4, 0.5, 0.9, 0.999, 1.0}) {
      const ByteVector chunk = RandomChunk(lines, zeros, random);
      const std::optional<ByteVector> packed = PackSparseChunk(chunk);
      if (!packed.has_value()) continue;  // by chance few of them are zero
      EXPECT_LE(packed->size(), chunk.size() / 4 * 3);
      EXPECT_THAT(Unpacked(*packed, static_cast<int64_t>(chunk.size())), IsOkAndHolds(chunk)) << lines << " " << zeros;
    }
  }
}

TEST(SparseChunkTest, BytesAreAsDocumented) {
  ByteVector chunk(10 * kLineBytes);
  chunk[0] = std::byte{7};
  chunk[9 * kLineBytes + 63] = std::byte{8};
  ByteVector want(2 + 2 * kLineBytes);
  want[0] = std::byte{1};
  want[1] = std::byte{2};
  want[2] = std::byte{7};
  want.back() = std::byte{8};
  EXPECT_EQ(PackSparseChunk(chunk), want);
  // Nothing but zeros.
  EXPECT_EQ(PackSparseChunk(ByteVector(kChunkElems * 4)), ByteVector(2048));
}

TEST(SparseChunkTest, ANegativeZeroIsNoZero) {
  ByteVector chunk(64 * kLineBytes);
  const float negative = -0.0f;
  std::memcpy(&chunk[5 * kLineBytes + 8], &negative, sizeof(negative));
  const std::optional<ByteVector> packed = PackSparseChunk(chunk);
  ASSERT_TRUE(packed.has_value());
  EXPECT_EQ(packed->size(), 8u + kLineBytes);
  EXPECT_THAT(Unpacked(*packed, static_cast<int64_t>(chunk.size())), IsOkAndHolds(chunk));
}

TEST(SparseChunkTest, WhatWouldSaveLittleStaysAsItIs) {
  std::mt19937 random(4);
  EXPECT_EQ(PackSparseChunk(RandomChunk(4096, 0, random)), std::nullopt);
  EXPECT_EQ(PackSparseChunk(RandomChunk(4096, 0.1, random)), std::nullopt);
  EXPECT_TRUE(PackSparseChunk(RandomChunk(4096, 0.4, random)).has_value());
  // Lines that are looked at are zero, and most others are not.
  ByteVector chunk = RandomChunk(4096, 0, random);
  for (int64_t line = 0; line < 4096; line += 64) std::fill_n(&chunk[line * kLineBytes], kLineBytes, std::byte{0});
  EXPECT_EQ(PackSparseChunk(chunk), std::nullopt);
  // Three of four may follow, and their bits no more.
  chunk = RandomChunk(4, 0, random);
  std::fill_n(chunk.begin(), kLineBytes, std::byte{0});
  EXPECT_EQ(PackSparseChunk(chunk), std::nullopt);
  EXPECT_EQ(PackSparseChunk(ByteVector()), std::nullopt);
}

TEST(SparseChunkTest, WhatIsNotPackedRightIsRefused) {
  constexpr int64_t kNumBytes = 10 * kLineBytes;
  const auto refused = [&](const ByteVector& packed, const char* words) {
    EXPECT_THAT(Unpacked(packed, kNumBytes), StatusIs(kInvalid, words)) << words;
  };
  ByteVector packed(2 + 2 * kLineBytes);
  packed[0] = std::byte{0x11};
  ASSERT_OK(Unpacked(packed, kNumBytes));
  refused(ByteVector(1), "1 bytes, want 2 to 640 for a chunk of 640");
  refused(ByteVector(641), "641 bytes, want 2 to 640");
  refused(ByteVector(packed.begin(), packed.end() - 1), "129 bytes, want 130 for the 2 lines whose bits are set");
  refused(ByteVector(packed.begin(), packed.begin() + 2), "2 bytes, want 130 for the 2 lines");
  packed[0] = std::byte{0x13};
  refused(packed, "130 bytes, want 194 for the 3 lines");
  packed[0] = std::byte{0x01};
  packed[1] = std::byte{0x04};
  refused(packed, "bit 10 is set, want zeros behind the chunk's 10 lines");
}

}  // namespace
}  // namespace eps
