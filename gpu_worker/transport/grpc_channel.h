#ifndef EPS_GPU_WORKER_TRANSPORT_GRPC_CHANNEL_H_
#define EPS_GPU_WORKER_TRANSPORT_GRPC_CHANNEL_H_

#include <functional>
#include <memory>
#include <string>

#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace eps::worker {

// What the daemon is shown on a new channel; asked for each. Null: nothing, in plaintext.
using CredentialsSource = std::function<std::shared_ptr<grpc::ChannelCredentials>()>;
inline std::shared_ptr<grpc::ChannelCredentials> NoCredentials() { return nullptr; }

// Connections to a daemon at `address` (HOST:PORT). Each call opens one of its own, so that heartbeats do not
// queue behind gradients.
//
// Control: messages of up to `max_message_bytes`.
// Data:    a chunk and its header, in HTTP/2 frames as large as the chunk.
// Without credentials all is plaintext (common/grpc/client_credentials.h makes some).
std::shared_ptr<grpc::Channel> NewControlChannel(const std::string& address, int max_message_bytes,
                                                 std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);
std::shared_ptr<grpc::Channel> NewDataChannel(const std::string& address,
                                              std::shared_ptr<grpc::ChannelCredentials> credentials = nullptr);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_GRPC_CHANNEL_H_
