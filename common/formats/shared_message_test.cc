#include "common/formats/shared_message.h"

#include <string>

#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using absl::StatusCode;

SharedMessage AnOffer() {
  return {.kind = SharedMessageKind::kOffer,
          .incarnation = 0x1122334455667788,
          .step = 41,
          .blob = BlobId(3),
          .use = 1,
          .node = {2, 2},
          .dtype = Dtype::kBf16,
          .nonfinite_vnode = 3,
          .number = 17,
          .chunk = 5,
          .num_chunks = 2,
          .offset_bytes = kStagingBytes + 128};
}

std::string With(std::string bytes, size_t offset, int value) {
  bytes[offset] = static_cast<char>(value);
  return bytes;
}

TEST(SharedMessageTest, TheExampleOfTheDocumentationIsWhatIsWritten) {
  const std::string want(
      "EPSM\x02\x03\x02\x00\x88\x77\x66\x55\x44\x33\x22\x11"
      "\x29\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00\x01\x00\x00\x00"
      "\x02\x00\x00\x00\x02\x00\x00\x00\x03\x00\x00\x00\x11\x00\x00\x00"
      "\x05\x00\x00\x00\x02\x00\x00\x00\x80\x00\x40\x00\x00\x00\x00\x00",
      kSharedMessageBytes);
  EXPECT_EQ(EncodeSharedMessage(AnOffer()), want);
}

TEST(SharedMessageTest, WhatIsWrittenIsRead) {
  SharedMessage refused = {.kind = SharedMessageKind::kRefused, .incarnation = 5};
  refused.refusal = absl::AbortedError("version 3 was overwritten");
  const SharedMessage pull = {
      .kind = SharedMessageKind::kPull, .incarnation = 5, .step = 7, .blob = BlobId(1), .chunk = 4, .num_chunks = 3};
  const SharedMessage elsewhere = {
      .kind = SharedMessageKind::kOffer, .node = {0, 1}, .num_chunks = 1, .offset_bytes = -1};
  for (const SharedMessage& message : {AnOffer(), refused, pull, elsewhere}) {
    EXPECT_THAT(DecodeSharedMessage(EncodeSharedMessage(message)), IsOkAndHolds(message));
  }
}

TEST(SharedMessageTest, ALongReasonIsCut) {
  SharedMessage refused = {.kind = SharedMessageKind::kRefused};
  refused.refusal = absl::InternalError(std::string(2000, 'x'));
  const std::string bytes = EncodeSharedMessage(refused);
  EXPECT_EQ(bytes.size(), kSharedMessageBytes + kMaxRefusalBytes);
  EXPECT_THAT(DecodeSharedMessage(bytes), IsOk());
}

TEST(SharedMessageTest, WhatIsWrongIsNamedByFieldAndOffset) {
  const std::string good = EncodeSharedMessage(AnOffer());
  const struct {
    std::string bytes;
    std::string message;
  } cases[] = {
      {"", "message: 0 bytes, must be at least 64"},
      {good.substr(0, 63), "message: 63 bytes, must be at least 64"},
      {good + "x", "message: length (offset 65): 65, must be at most 64"},
      {With(good, 0, 'X'), "message: magic (offset 0): 0x4d535058, must be 0x4d535045 (\"EPSM\")"},
      {With(good, 4, 1), "message: format (offset 4): 1, must be 2"},
      {With(good, 5, 0), "message: kind (offset 5): 0, must be 1 to 6 or 17 to 23"},
      {With(good, 5, 7), "message: kind (offset 5): 7, must be 1 to 6 or 17 to 23"},
      {With(good, 5, 24), "message: kind (offset 5): 24, must be 1 to 6 or 17 to 23"},
      {With(good, 6, 4), "message: dtype (offset 6): 4, must be 1 (F32), 2 (BF16) or 3 (F16)"},
      {With(good, 5, 2), "message: dtype (offset 6): 2, must be 0"},
      {With(good, 7, 1), "message: status code (offset 7): 1, must be 0"},
      {With(With(good, 5, 23), 6, 0), "message: status code (offset 7): 0, must be 1 to 16"},
      {With(good, 23, 0x80), "message: step (offset 16): -9223372036854775767, must be at least 0"},
      {With(good, 27, 0x80), "message: blob (offset 24): -2147483645, must be at least 0"},
      {With(good, 31, 0x80), "message: use (offset 28): -2147483647, must be at least 0"},
      {With(good, 35, 0x80), "message: node.first (offset 32): -2147483646, must be at least 0"},
      {With(good, 36, 0), "message: node.count (offset 36): 0, must be at least 1, and small enough for node.first"},
      {With(good, 39, 0x7F),
       "message: node.count (offset 36): 2130706434, must be at least 1, and small enough for node.first"},
      {With(good, 43, 0x80), "message: nonfinite_vnode (offset 40): -2147483645, must be at least -1"},
      {With(good, 51, 0x80), "message: chunk (offset 48): -2147483643, must be at least 0"},
      {With(good, 52, 0), "message: num_chunks (offset 52): 0, must be at least 1"},
      {With(good, 55, 0x80), "message: num_chunks (offset 52): -2147483646, must be at least 1"},
      {With(With(With(good, 5, 2), 6, 0), 52, 0), "message: num_chunks (offset 52): 0, must be at least 1"},
      {With(With(With(good, 5, 5), 6, 0), 52, 0), "message: num_chunks (offset 52): 0, must be at least 1"},
      {With(With(good, 5, 4), 6, 0), "message: num_chunks (offset 52): 2, must be 0"},
      {With(good, 63, 0x80), "message: offset (offset 56): -9223372036850581376, must be at least -1"},
  };
  for (const auto& c : cases) {
    if (c.message.find("node.count (offset 36): 2130706434") != std::string::npos) {
      // 0x7F000002 vnodes from the second on: the end still fits.
      EXPECT_THAT(DecodeSharedMessage(c.bytes), IsOk());
      EXPECT_THAT(DecodeSharedMessage(With(c.bytes, 35, 0x7F)), StatusIs(StatusCode::kInvalidArgument, c.message));
      continue;
    }
    EXPECT_THAT(DecodeSharedMessage(c.bytes), StatusIs(StatusCode::kInvalidArgument, c.message));
  }
}

}  // namespace
}  // namespace eps
