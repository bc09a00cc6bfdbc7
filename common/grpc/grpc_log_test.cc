#include "common/grpc/grpc_log.h"

#include <algorithm>
#include <string>

#include "grpc/grpc.h"
#include "grpc/support/log.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(GrpcLogTest, ErrorsAreLoggedInOurFormatAndRarely) {
  LogGrpcErrors();
  grpc_init();  // which sets what is said
  ::testing::internal::CaptureStderr();
  for (int i = 0; i < 1000; ++i) gpr_log("a/folder/ssl.cc", 7, GPR_LOG_SEVERITY_ERROR, "Handshake failed %d", i);
  const std::string log = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("WARNING grpc message=\"Handshake failed 0\" where=ssl.cc:7 said_so_far=1\n"), std::string::npos)
      << log;
  grpc_shutdown();
  EXPECT_LE(std::count(log.begin(), log.end(), '\n'), 3) << log;  // a second may end meanwhile
}

}  // namespace
}  // namespace eps
