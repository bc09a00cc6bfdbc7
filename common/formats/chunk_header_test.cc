#include "common/formats/chunk_header.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using Bytes = std::array<std::byte, kChunkHeaderBytes>;

ChunkHeader Gradient() {
  ChunkHeader header;
  header.kind = ChunkKind::kGradient;
  header.dtype = Dtype::kBf16;
  header.incarnation = 0x1122334455667788u;
  header.step = 0x0102030405;
  header.blob = BlobId(7);
  header.use = 1;
  header.node = {4, 2};
  header.chunk = 258;
  header.payload_bytes = 524288;
  header.nonfinite_vnode = 5;
  header.contribution = 0xFFFFFFFFu;
  return header;
}

ChunkHeader Weights() {
  ChunkHeader header;
  header.incarnation = 9;
  header.step = 3;
  header.blob = BlobId(2);
  header.chunk = 1;
  header.payload_bytes = 64;
  header.version_wait_micros = 0x0605040302;
  return header;
}

// A header with `num_bytes` bytes from `offset` on replaced by `value`, little endian.
Bytes With(const ChunkHeader& header, int offset, int num_bytes, uint64_t value) {
  Bytes bytes = EncodeChunkHeader(header);
  for (int i = 0; i < num_bytes; ++i) bytes[offset + i] = static_cast<std::byte>(value >> (8 * i) & 0xFF);
  return bytes;
}

absl::Status Decode(const Bytes& bytes) { return DecodeChunkHeader(bytes).status(); }

TEST(ChunkHeaderTest, WhatIsEncodedIsDecoded) {
  EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(Gradient())), IsOkAndHolds(Gradient()));
  EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(Weights())), IsOkAndHolds(Weights()));
}

TEST(ChunkHeaderTest, BytesAreAsDocumented) {
  const std::vector<int> want = {'E',  'P',  'S',  'C',  2,    0,    2,    2,     // magic, format, kind, dtype
                                 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // incarnation
                                 0x05, 0x04, 0x03, 0x02, 0x01, 0,    0,    0,     // step
                                 7,    0,    0,    0,    1,    0,    0,    0,     // blob, use
                                 4,    0,    0,    0,    2,    0,    0,    0,     // node
                                 2,    1,    0,    0,    0,    0,    8,    0,     // chunk, payload_bytes
                                 5,    0,    0,    0,    0xFF, 0xFF, 0xFF, 0xFF,  // nonfinite_vnode, contribution
                                 0,    0,    0,    0,    0,    0,    0,    0};
  const Bytes bytes = EncodeChunkHeader(Gradient());
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_EQ(std::to_integer<int>(bytes[i]), want[i]) << i;
}

TEST(ChunkHeaderTest, BytesAfterTheHeaderAreNotLookedAt) {
  const Bytes header = EncodeChunkHeader(Weights());
  std::vector<std::byte> message(header.begin(), header.end());
  message.resize(200, std::byte{0xFF});
  EXPECT_THAT(DecodeChunkHeader(message), IsOkAndHolds(Weights()));
}

TEST(ChunkHeaderTest, AShortMessageIsRefusedWithItsLength) {
  const Bytes bytes = EncodeChunkHeader(Weights());
  for (size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THAT(DecodeChunkHeader(absl::MakeSpan(bytes).subspan(0, length)),
                StatusIs(kInvalid, std::to_string(length) + " bytes, must be at least 64"));
  }
}

TEST(ChunkHeaderTest, EachBadFieldIsNamedWithItsOffsetAndValue) {
  struct Case {
    int offset, num_bytes;
    uint64_t value;
    const char* message;
  };
  for (const Case& c : {
           Case{0, 4, 0, "magic (offset 0): 0x00000000"},
           Case{4, 2, 1, "format (offset 4): 1, must be 2"},
           Case{6, 1, 0, "kind (offset 6): 0"},
           Case{6, 1, 6, "kind (offset 6): 6"},
           Case{7, 1, 0, "dtype (offset 7): 0"},
           Case{7, 1, 4, "dtype (offset 7): 4"},
           Case{16, 8, ~uint64_t{0}, "step (offset 16): -1"},
           Case{24, 4, 0xFFFFFFFF, "blob (offset 24): -1"},
           Case{28, 4, 0x80000000, "use (offset 28): -2147483648"},
           Case{32, 4, 0xFFFFFFFF, "node.first (offset 32): -1"},
           Case{36, 4, 0, "node.count (offset 36): 0"},
           Case{36, 4, 0x7FFFFFFF, "node.count (offset 36): 2147483647"},
           Case{40, 4, 0xFFFFFFFF, "chunk (offset 40): -1"},
           Case{44, 4, 0, "payload_bytes (offset 44): 0"},
           Case{44, 4, 3, "payload_bytes (offset 44): 3"},
           Case{44, 4, 524290, "payload_bytes (offset 44): 524290"},
           Case{44, 4, 0xFFFFFFFE, "payload_bytes (offset 44): 4294967294"},
           Case{48, 4, 6, "nonfinite_vnode (offset 48): 6, must be -1 or one of {4..5}"},
           Case{48, 4, 0xFFFFFFFE, "nonfinite_vnode (offset 48): -2"},
           Case{48, 4, 0x7FFFFFFF, "nonfinite_vnode (offset 48): 2147483647"},
           Case{56, 8, 1, "version_wait_micros (offset 56): 1, must be 0 for a gradient"},
           Case{63, 1, 1, "version_wait_micros (offset 56)"},
       }) {
    EXPECT_THAT(Decode(With(Gradient(), c.offset, c.num_bytes, c.value)), StatusIs(kInvalid, c.message)) << c.message;
  }
}

TEST(ChunkHeaderTest, WeightsHaveNoFieldsOfGradients) {
  EXPECT_THAT(Decode(With(Weights(), 28, 4, 1)), StatusIs(kInvalid, "use (offset 28): 1, must be 0 for weights"));
  EXPECT_THAT(Decode(With(Weights(), 32, 4, 1)), StatusIs(kInvalid, "node.first"));
  EXPECT_THAT(Decode(With(Weights(), 36, 4, 1)), StatusIs(kInvalid, "node.count"));
  EXPECT_THAT(Decode(With(Weights(), 48, 4, 0)), StatusIs(kInvalid, "nonfinite_vnode"));
  EXPECT_THAT(Decode(With(Weights(), 52, 4, 1)), StatusIs(kInvalid, "contribution"));
}

TEST(ChunkHeaderTest, WeightsSayHowLongTheirVersionWasWaitedForAtTheEnd) {
  const Bytes bytes = EncodeChunkHeader(Weights());
  const std::vector<int> want = {2, 3, 4, 5, 6, 0, 0, 0};
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(std::to_integer<int>(bytes[56 + i]), want[i]) << i;
  EXPECT_THAT(Decode(With(Weights(), 56, 8, ~uint64_t{0})),
              StatusIs(kInvalid, "version_wait_micros (offset 56): -1, must be at least 0"));
}

TEST(ChunkHeaderTest, QuantizedWeightsComeInWholeBlocks) {
  struct Case {
    ChunkKind kind;
    std::vector<uint32_t> good, bad;
    const char* want;
  };
  const std::vector<Case> cases = {
      {ChunkKind::kMxInt8Weights, {66, 660, 270336}, {0, 33, 64, 270336 + 66}, "multiple of 66 between 66 and 270336"},
      {ChunkKind::kNf4Weights, {34, 340, 139264}, {0, 17, 64, 139264 + 34}, "multiple of 34 between 34 and 139264"}};
  for (const Case& c : cases) {
    ChunkHeader header = Weights();
    header.kind = c.kind;
    header.dtype = Dtype::kBf16;
    for (const uint32_t bytes : c.good) {
      header.payload_bytes = bytes;
      EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)), IsOkAndHolds(header));
    }
    for (const uint32_t bytes : c.bad) {
      header.payload_bytes = bytes;
      EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)), StatusIs(kInvalid, c.want));
    }
    header.payload_bytes = c.good[0];
    header.use = 1;
    EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)), StatusIs(kInvalid, "use (offset 28): 1"));
    header.use = 0;
    header.dtype = Dtype::kF32;
    EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)),
                StatusIs(kInvalid, absl::StrCat("dtype (offset 7): 1, must be 2 (BF16) for ", NameOf(c.kind))));
  }
}

TEST(ChunkHeaderTest, ASparseGradientMayHaveAnyNumberOfBytesThatAChunkHas) {
  ChunkHeader header = Gradient();
  header.kind = ChunkKind::kSparseGradient;
  EXPECT_EQ(NameOf(header.kind), "sparse gradient");
  for (const uint32_t bytes : {1, 1027, 524288}) {
    header.payload_bytes = bytes;
    EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)), IsOkAndHolds(header));
  }
  for (const uint32_t bytes : {0, 524289}) {
    header.payload_bytes = bytes;
    EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)), StatusIs(kInvalid, "payload_bytes (offset 44)"));
  }
  header.payload_bytes = 64;
  header.version_wait_micros = 1;
  EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)), StatusIs(kInvalid, "version_wait_micros (offset 56)"));
}

TEST(ChunkHeaderTest, AWholeChunkOfTheWidestDtypeFits) {
  ChunkHeader header = Weights();
  header.payload_bytes = kChunkElems * 4;
  EXPECT_OK(DecodeChunkHeader(EncodeChunkHeader(header)));
  header.payload_bytes += 4;
  EXPECT_THAT(DecodeChunkHeader(EncodeChunkHeader(header)), StatusIs(kInvalid, "payload_bytes"));
}

TEST(ChunkHeaderTest, RandomBytesAreRefusedOrDecodeToWhatTheyEncode) {
  std::mt19937 random(1);
  for (int round = 0; round < 20000; ++round) {
    Bytes bytes = EncodeChunkHeader(round % 2 == 0 ? Gradient() : Weights());
    for (unsigned change = 0; change < 1 + round % 3u; ++change) {
      bytes[random() % bytes.size()] = static_cast<std::byte>(random() & 0xFF);
    }
    if (const absl::StatusOr<ChunkHeader> header = DecodeChunkHeader(bytes); header.ok()) {
      EXPECT_EQ(EncodeChunkHeader(*header), bytes);
    } else {
      EXPECT_THAT(header, StatusIs(kInvalid, "chunk header: "));
    }
  }
}

}  // namespace
}  // namespace eps
