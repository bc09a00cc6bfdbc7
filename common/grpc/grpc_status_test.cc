#include "common/grpc/grpc_status.h"

#include <string>

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(GrpcStatusTest, CodeAndMessageGoThereAndBack) {
  const absl::Status status = absl::AbortedError("version 3 was overwritten");
  EXPECT_EQ(FromGrpc(ToGrpc(status)), status);
  EXPECT_TRUE(ToGrpc(absl::OkStatus()).ok());
}

TEST(GrpcStatusTest, AnErrorWithoutAMessageIsCalledByItsCode) {
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "")), absl::UnimplementedError("UNIMPLEMENTED"));
  EXPECT_EQ(FromGrpc(grpc::Status(grpc::StatusCode::OK, "")), absl::OkStatus());
}

TEST(GrpcStatusTest, AMessageIsCutToWhatTrailersHoldOnceItIsEncoded) {
  EXPECT_EQ(ToGrpc(absl::InternalError(std::string(10000, 'a'))).error_message().size(), 4096u);
  EXPECT_EQ(ToGrpc(absl::InternalError(std::string(10000, '\xFC'))).error_message().size(), 4096u / 3);
  EXPECT_EQ(ToGrpc(absl::InternalError(std::string(10000, '%'))).error_message().size(), 4096u / 3);
}

}  // namespace
}  // namespace eps
