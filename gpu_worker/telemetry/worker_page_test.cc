#include "gpu_worker/telemetry/worker_page.h"

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/testing/status_matchers.h"
#include "gmock/gmock.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/impl/codegen/client_unary_call.h"
#include "grpcpp/impl/codegen/rpc_method.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/byte_buffer.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kHealth[] = "/grpc.health.v1.Health/Check";
// HealthCheckResponse, field 1: the status.
constexpr char kServing[] = "\x08\x01", kNotServing[] = "\x08\x02";

// What grpc.health.v1 answers for the server as a whole: a HealthCheckRequest without a field is no bytes.
std::string Ask(const std::string& server, const char* called = kHealth) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  const auto channel = grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
  const grpc::internal::RpcMethod method(called, grpc::internal::RpcMethod::NORMAL_RPC, channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  const grpc::ByteBuffer request(nullptr, 0);
  grpc::ByteBuffer reply;
  const grpc::Status status = grpc::internal::BlockingUnaryCall<grpc::ByteBuffer, grpc::ByteBuffer>(
      channel.get(), method, &context, request, &reply);
  if (!status.ok()) return "error " + std::to_string(status.error_code());
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(reply.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

void Enter(WorkerPage& page, WorkerPhase phase) {
  page.Update([phase](WorkerView& view) { view.phase = phase; });
}

TEST(WorkerPageTest, HealthOverGrpcIsWhatReadyzSays) {
  ASSERT_OK_AND_ASSIGN(const auto page, WorkerPage::Start({.health_listen = "127.0.0.1:0"}));
  ASSERT_THAT(page->health_address(), StartsWith("127.0.0.1:"));
  EXPECT_EQ(Ask(page->health_address()), kNotServing);  // it looks for its daemon
  Enter(*page, WorkerPhase::kPreparing);
  EXPECT_EQ(Ask(page->health_address()), kNotServing);
  Enter(*page, WorkerPhase::kIdle);
  EXPECT_EQ(Ask(page->health_address()), kServing);
  Enter(*page, WorkerPhase::kRunning);
  EXPECT_EQ(Ask(page->health_address()), kServing);
  Enter(*page, WorkerPhase::kConnecting);
  EXPECT_EQ(Ask(page->health_address()), kNotServing);
  EXPECT_EQ(Ask(page->health_address(), "/eps.proto.Control/GetStatus"), "error 12");  // UNIMPLEMENTED
}

TEST(WorkerPageTest, ThereIsNoHealthServerUnlessItIsAskedFor) {
  ASSERT_OK_AND_ASSIGN(const auto page, WorkerPage::Start({}));
  EXPECT_EQ(page->health_address(), "");
}

TEST(WorkerPageTest, HealthForOthersThanThisHostMustBeAskedFor) {
  const auto refused = WorkerPage::Start({.health_listen = "0.0.0.0:0"}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("--health-listen: 0.0.0.0:0"));
  EXPECT_OK(WorkerPage::Start({.any_address = true, .health_listen = "0.0.0.0:0"}).status());
}

TEST(WorkerPageTest, AnAddressThatIsTakenIsNamed) {
  ASSERT_OK_AND_ASSIGN(const auto page, WorkerPage::Start({.health_listen = "127.0.0.1:0"}));
  EXPECT_THAT(WorkerPage::Start({.health_listen = page->health_address()}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       "--health-listen: cannot listen on " + page->health_address()));
  EXPECT_THAT(WorkerPage::Start({.listen = page->address()}).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "--metrics-listen: cannot listen on " + page->address()));
}

}  // namespace
}  // namespace eps::worker
