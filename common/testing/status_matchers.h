#ifndef EPS_COMMON_TESTING_STATUS_MATCHERS_H_
#define EPS_COMMON_TESTING_STATUS_MATCHERS_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Matchers for absl::Status and absl::StatusOr, which this Abseil does not bring:
//
//   EXPECT_OK(store.Close());
//   EXPECT_THAT(ParseByteSize("12 apples"), StatusIs(absl::StatusCode::kInvalidArgument, "apples"));
//   EXPECT_THAT(ParseByteSize("1KiB"), IsOkAndHolds(1024));
//   ASSERT_OK_AND_ASSIGN(auto file, TokenFile::Open(path, 1));

namespace eps {

inline constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;  // what bad input gets

namespace testing_internal {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

}  // namespace testing_internal

MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  const absl::Status& status = testing_internal::StatusOf(arg);
  if (!status.ok()) *result_listener << "which is " << std::string(status.ToString());
  return status.ok();
}

// A status with this code whose message contains `substring` (empty: any message).
MATCHER_P2(StatusIs, code, substring, "") {
  const absl::Status& status = testing_internal::StatusOf(arg);
  *result_listener << "which is " << std::string(status.ToString());
  const std::string message(status.message().data(), status.message().size());
  return status.code() == code && message.find(std::string(substring)) != std::string::npos;
}

template <typename Code>
auto StatusIs(Code code) {
  return StatusIs(code, std::string());
}

// An OK StatusOr whose value matches `inner`.
MATCHER_P(IsOkAndHolds, inner, "") {
  if (!arg.ok()) {
    *result_listener << "which is " << std::string(arg.status().ToString());
    return false;
  }
  return ::testing::ExplainMatchResult(inner, *arg, result_listener);
}

}  // namespace eps

#define EXPECT_OK(expression) EXPECT_THAT((expression), ::eps::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT((expression), ::eps::IsOk())

#define EPS_TESTING_CONCAT_INNER_(a, b) a##b
#define EPS_TESTING_CONCAT_(a, b) EPS_TESTING_CONCAT_INNER_(a, b)
// ASSERT_OK_AND_ASSIGN(auto value, MakeValue()): the value, or ends the test.
#define ASSERT_OK_AND_ASSIGN(lhs, expression) \
  ASSERT_OK_AND_ASSIGN_IMPL_(EPS_TESTING_CONCAT_(eps_result_, __LINE__), lhs, expression)
#define ASSERT_OK_AND_ASSIGN_IMPL_(result, lhs, expression) \
  auto result = (expression);                               \
  ASSERT_THAT(result, ::eps::IsOk());                       \
  lhs = std::move(result).value()

#endif  // EPS_COMMON_TESTING_STATUS_MATCHERS_H_
