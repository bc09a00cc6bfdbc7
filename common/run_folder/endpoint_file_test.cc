#include "common/run_folder/endpoint_file.h"

#include "absl/status/status.h"
#include "common/base/file_util.h"
#include "common/testing/status_matchers.h"
#include "common/testing/temp_dir.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(EndpointFileTest, WhatADaemonWritesIsReadUntilItRemovesIt) {
  const TempDir dir;
  ASSERT_OK(WriteEndpointFile(dir.path(), EndpointFile::kStarting,
                              {.address = "127.0.0.1:7", .page = "127.0.0.1:8", .process_id = 9}));
  ASSERT_OK_AND_ASSIGN(const Endpoint endpoint, ReadEndpointFile(dir.path(), EndpointFile::kStarting));
  EXPECT_EQ(endpoint.address, "127.0.0.1:7");
  EXPECT_EQ(endpoint.page, "127.0.0.1:8");
  EXPECT_EQ(endpoint.process_id, 9);
  EXPECT_THAT(ReadEndpointFile(dir.path(), EndpointFile::kRunning).status(), StatusIs(absl::StatusCode::kNotFound));
  ASSERT_OK(RemoveEndpointFile(dir.path(), EndpointFile::kStarting));
  EXPECT_THAT(ReadEndpointFile(dir.path(), EndpointFile::kStarting).status(), StatusIs(absl::StatusCode::kNotFound));
}

TEST(EndpointFileTest, AFileWithoutAPageIsOfADaemonThatHasNone) {
  const TempDir dir;
  ASSERT_OK(WriteFileAtomically(dir.File("endpoints.json"), R"({"grpc": "127.0.0.1:7", "pid": 9})"));
  ASSERT_OK_AND_ASSIGN(const Endpoint endpoint, ReadEndpointFile(dir.path(), EndpointFile::kRunning));
  EXPECT_EQ(endpoint.page, "");
}

TEST(EndpointFileTest, WhatIsNoneIsRefusedByFileAndField) {
  const TempDir dir;
  for (const char* text : {"", "[]", R"({"grpc": 7, "pid": 9})", R"({"grpc": "127.0.0.1:7"})"}) {
    ASSERT_OK(WriteFileAtomically(dir.File("endpoints.json"), text));
    EXPECT_THAT(ReadEndpointFile(dir.path(), EndpointFile::kRunning).status(),
                StatusIs(absl::StatusCode::kInvalidArgument, "endpoints.json: wants a text \"grpc\""));
  }
}

}  // namespace
}  // namespace eps
