#include "common/base/status_macros.h"

#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/testing/status_matchers.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

absl::Status ReturnIfError(const absl::Status& status) {
  EPS_RETURN_IF_ERROR(status);
  return absl::UnknownError("went on");
}

absl::Status ReturnIfErrorWith(const absl::Status& status, const std::string& where) {
  EPS_RETURN_IF_ERROR_WITH(status, where);
  return absl::OkStatus();
}

absl::StatusOr<int> AddOne(absl::StatusOr<std::unique_ptr<int>> input) {
  EPS_ASSIGN_OR_RETURN(const std::unique_ptr<int> value, std::move(input));
  return *value + 1;
}

TEST(StatusMacrosTest, AnErrorIsReturnedAndOkGoesOn) {
  EXPECT_THAT(ReturnIfError(absl::NotFoundError("x")), StatusIs(absl::StatusCode::kNotFound, "x"));
  EXPECT_THAT(ReturnIfError(absl::OkStatus()), StatusIs(absl::StatusCode::kUnknown, "went on"));
}

TEST(StatusMacrosTest, AnnotationsStandInFrontAndKeepTheCode) {
  EXPECT_THAT(ReturnIfErrorWith(absl::DataLossError("bad sum"), "step 41"),
              StatusIs(absl::StatusCode::kDataLoss, "step 41: bad sum"));
  EXPECT_OK(ReturnIfErrorWith(absl::OkStatus(), "step 41"));
  EXPECT_OK(Annotate(absl::OkStatus(), "step 41"));
}

TEST(StatusMacrosTest, AssignMovesTheValueOutOrReturnsTheError) {
  EXPECT_THAT(AddOne(std::make_unique<int>(3)), IsOkAndHolds(4));
  EXPECT_THAT(AddOne(absl::NotFoundError("x")), StatusIs(absl::StatusCode::kNotFound, "x"));
}

TEST(StatusMacrosDeathTest, AFailedCheckNamesItsCondition) {
  const int one = 1;
  EPS_CHECK(one == 1);
  EXPECT_DEATH(EPS_CHECK(one == 2), "check failed: one == 2");
}

}  // namespace
}  // namespace eps
