#include "common/base/sha256.h"

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

// FIPS 180-4's examples.
constexpr char kEmpty[] = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
constexpr char kAbc[] = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
constexpr char kMillionA[] = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

absl::Span<const std::byte> Bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST(Sha256Test, KnownDigestsCome) {
  EXPECT_EQ(Sha256Hex({}), kEmpty);
  EXPECT_EQ(Sha256Hex(Bytes("abc")), kAbc);
  EXPECT_EQ(Sha256Hex(Bytes(std::string(1000000, 'a'))), kMillionA);
}

TEST(Sha256Test, PartsGiveTheDigestOfTheWhole) {
  Sha256 hash;
  hash.Update(Bytes("a"));
  hash.Update({});
  Sha256 moved = std::move(hash);
  moved.Update(Bytes("bc"));
  EXPECT_EQ(moved.FinishHex(), kAbc);
}

TEST(Sha256Test, AFileOfSeveralPiecesIsReadWhole) {
  const TempDir dir;
  const std::string content(3 * (1 << 20) + 5, 'x');
  ASSERT_OK(WriteFileAtomically(dir.File("a"), content));
  EXPECT_THAT(Sha256HexOfFile(dir.File("a")), IsOkAndHolds(Sha256Hex(Bytes(content))));
  ASSERT_OK(WriteFileAtomically(dir.File("a"), ""));
  EXPECT_THAT(Sha256HexOfFile(dir.File("a")), IsOkAndHolds(kEmpty));
}

TEST(Sha256Test, AFileThatCannotBeReadIsNamed) {
  const TempDir dir;
  EXPECT_THAT(Sha256HexOfFile(dir.File("none")), StatusIs(absl::StatusCode::kNotFound, dir.File("none")));
  EXPECT_THAT(Sha256HexOfFile(dir.path()), StatusIs(absl::StatusCode::kFailedPrecondition, "Is a directory"));
}

TEST(Sha256DeathTest, AFinishedObjectTakesNoMore) {
  Sha256 hash;
  hash.FinishHex();
  EXPECT_DEATH(hash.Update({}), "check failed");
}

}  // namespace
}  // namespace eps
