#include "common/base/byte_size.h"

#include <limits>
#include <string>

#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(ByteSizeTest, UnitsArePowersOf1024) {
  EXPECT_THAT(ParseByteSize("7B"), IsOkAndHolds(7));
  EXPECT_THAT(ParseByteSize("1KiB"), IsOkAndHolds(1024));
  EXPECT_THAT(ParseByteSize("512MiB"), IsOkAndHolds(int64_t{512} << 20));
  EXPECT_THAT(ParseByteSize("3GiB"), IsOkAndHolds(int64_t{3} << 30));
  EXPECT_THAT(ParseByteSize("2TiB"), IsOkAndHolds(int64_t{2} << 40));
}

TEST(ByteSizeTest, NoUnitMeansBytes) { EXPECT_THAT(ParseByteSize("65536"), IsOkAndHolds(65536)); }

TEST(ByteSizeTest, CaseAndSpacesDoNotMatter) {
  EXPECT_THAT(ParseByteSize(" 1.5 gib "), IsOkAndHolds((int64_t{3} << 30) / 2));
  EXPECT_THAT(ParseByteSize("10MIB"), IsOkAndHolds(int64_t{10} << 20));
}

TEST(ByteSizeTest, FractionsAreCutToWholeBytes) {
  EXPECT_THAT(ParseByteSize("0.5KiB"), IsOkAndHolds(512));
  EXPECT_THAT(ParseByteSize("0.3KiB"), IsOkAndHolds(307));
  EXPECT_THAT(ParseByteSize("1.9"), IsOkAndHolds(1));
}

TEST(ByteSizeTest, LargeWholeNumbersAreExact) {
  EXPECT_THAT(ParseByteSize("9223372036854775807"), IsOkAndHolds(std::numeric_limits<int64_t>::max()));
  EXPECT_THAT(ParseByteSize("9007199254740993"), IsOkAndHolds(9007199254740993));
}

TEST(ByteSizeTest, BadSizesAreNamedTogetherWithTheUnits) {
  for (const std::string bad :
       {"", " ", "MiB", "12 apples", "12MB", "12 M", "-1MiB", "1e3", "1.2.3MiB", "nan", "0x10", ".", "1 KiB KiB"}) {
    EXPECT_THAT(ParseByteSize(bad), StatusIs(absl::StatusCode::kInvalidArgument, "\"" + bad + "\"")) << bad;
    EXPECT_THAT(ParseByteSize(bad), StatusIs(absl::StatusCode::kInvalidArgument, "KiB MiB GiB TiB")) << bad;
  }
}

TEST(ByteSizeTest, ASizeThatIsTooLargeIsOneAllTheSame) {
  for (const std::string large : {"9223372036854775808", "8388608TiB", "99999999TiB", "99999999999999999999.5TiB"}) {
    EXPECT_THAT(ParseByteSize(large),
                StatusIs(absl::StatusCode::kInvalidArgument, "\"" + large + "\" is too large: less than 8388608TiB"));
  }
  EXPECT_THAT(ParseByteSize("8388607TiB"), IsOkAndHolds(int64_t{8388607} << 40));
}

TEST(ByteSizeTest, SizesAreShownInTheUnitThatKeepsThemShort) {
  EXPECT_EQ(FormatByteSize(0), "0 B");
  EXPECT_EQ(FormatByteSize(1023), "1023 B");
  EXPECT_EQ(FormatByteSize(1024), "1.0 KiB");
  EXPECT_EQ(FormatByteSize(45088768), "43.0 MiB");
  EXPECT_EQ(FormatByteSize((int64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatByteSize(int64_t{3} << 29), "1.5 GiB");
  EXPECT_EQ(FormatByteSize(int64_t{5} << 50), "5120.0 TiB");
  EXPECT_EQ(FormatByteSize(-2048), "-2.0 KiB");
}

TEST(ByteSizeTest, ALeastSizeAsItIsShownIsEnough) {
  EXPECT_EQ(FormatLeastByteSize(0), "0 B");
  EXPECT_EQ(FormatLeastByteSize(1023), "1023 B");
  EXPECT_EQ(FormatLeastByteSize(1024), "1.0 KiB");
  EXPECT_EQ(FormatLeastByteSize(1025), "1.1 KiB");
  EXPECT_EQ(FormatLeastByteSize((int64_t{1} << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatLeastByteSize(45088768), "43.0 MiB");
  EXPECT_EQ(FormatLeastByteSize(45088769), "43.1 MiB");
  // The tenths that a double has a little less of, and those beside them.
  for (const int shift : {10, 20, 30, 40}) {
    for (int64_t tenths = 10; tenths < 10239; tenths += 7) {
      for (const int64_t by : {-1, 0, 1}) {
        const int64_t bytes = tenths * (int64_t{1} << shift) / 10 + by;
        const std::string text = FormatLeastByteSize(bytes);
        const absl::StatusOr<int64_t> read = ParseByteSize(text);
        ASSERT_OK(read.status());
        EXPECT_GE(*read, bytes) << text;
        EXPECT_LE(*read, bytes + 2 * (int64_t{1} << shift) / 10 + 1) << text << " for " << bytes;
      }
    }
  }
}

TEST(ByteSizeTest, RoundUpGoesToTheNextMultiple) {
  EXPECT_EQ(RoundUp(0, 64), 0);
  EXPECT_EQ(RoundUp(1, 64), 64);
  EXPECT_EQ(RoundUp(64, 64), 64);
  EXPECT_EQ(RoundUp(65, 64), 128);
}

}  // namespace
}  // namespace eps
