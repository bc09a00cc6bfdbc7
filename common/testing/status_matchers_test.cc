#include "common/testing/status_matchers.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

using ::testing::Not;

TEST(StatusMatchersTest, IsOkTakesStatusesAndStatusOrs) {
  EXPECT_OK(absl::OkStatus());
  EXPECT_OK(absl::StatusOr<int>(3));
  EXPECT_THAT(absl::InternalError("x"), Not(IsOk()));
  EXPECT_THAT(absl::StatusOr<int>(absl::InternalError("x")), Not(IsOk()));
}

TEST(StatusMatchersTest, StatusIsComparesCodeAndPartOfTheMessage) {
  const absl::Status status = absl::NotFoundError("blob 7 is not here");
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kNotFound, "blob 7"));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kNotFound, "blob 8")));
  EXPECT_THAT(status, Not(StatusIs(absl::StatusCode::kInternal, "blob 7")));
}

TEST(StatusMatchersTest, IsOkAndHoldsLooksAtTheValue) {
  EXPECT_THAT(absl::StatusOr<int>(3), IsOkAndHolds(3));
  EXPECT_THAT(absl::StatusOr<int>(3), Not(IsOkAndHolds(4)));
  EXPECT_THAT(absl::StatusOr<int>(absl::InternalError("x")), Not(IsOkAndHolds(3)));
}

TEST(StatusMatchersTest, AssignTakesTheValueOut) {
  ASSERT_OK_AND_ASSIGN(const int value, absl::StatusOr<int>(3));
  EXPECT_EQ(value, 3);
}

}  // namespace
}  // namespace eps
