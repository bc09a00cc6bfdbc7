#include "gpu_worker/transport/grpc_channel.h"

#include "common/grpc/byte_buffers.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/support/channel_arguments.h"

namespace eps::worker {
namespace {

constexpr int kKeepaliveMillis = 20000;  // twice what the daemon allows (eps_server/service/rpc_server.cc)

grpc::ChannelArguments CommonArguments(int max_message_bytes) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);  // http_proxy is for the web: a daemon is spoken to directly
  arguments.SetMaxReceiveMessageSize(max_message_bytes);
  arguments.SetMaxSendMessageSize(max_message_bytes);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  // Retrying would keep copies of what was sent; a broken stream is attached anew instead.
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  // Across machines a daemon may vanish without a word.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMillis);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  return arguments;
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address,
                                          const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                          const grpc::ChannelArguments& arguments) {
  return grpc::CreateCustomChannel(address, credentials == nullptr ? grpc::InsecureChannelCredentials() : credentials,
                                   arguments);
}

}  // namespace

std::shared_ptr<grpc::Channel> NewControlChannel(const std::string& address, int max_message_bytes,
                                                 std::shared_ptr<grpc::ChannelCredentials> credentials) {
  return NewChannel(address, credentials, CommonArguments(max_message_bytes));
}

std::shared_ptr<grpc::Channel> NewDataChannel(const std::string& address,
                                              std::shared_ptr<grpc::ChannelCredentials> credentials) {
  grpc::ChannelArguments arguments = CommonArguments(static_cast<int>(kMaxDataMessageBytes));
  for (const ChannelArgument& each : kDataChannelArguments) arguments.SetInt(each.name, each.value);
  return NewChannel(address, credentials, arguments);
}

}  // namespace eps::worker
