#ifndef EPS_COMMON_GRPC_CLIENT_CREDENTIALS_H_
#define EPS_COMMON_GRPC_CLIENT_CREDENTIALS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/grpc/doors.h"
#include "common/security/changing_files.h"
#include "grpcpp/security/credentials.h"

namespace eps {

class ShownToken;

// What a client shows to the daemon at one address, by its files as they are: certificates with each new channel, the
// token with each call, on channels that are open too. Files that cannot be taken as they are change nothing: what was
// shown before goes on to be, and the log says why.
//
// Threads: Credentials from one; what it gives from any
class ClientKeys {
 public:
  // For a daemon at `address` (HOST:PORT). A token leaves this process only over TLS, or to an address of this machine.
  // Errors: LoadKeyPair's, LoadCa's, ReadTokenFile's · INVALID_ARGUMENT no TLS, and `address` is another machine's
  static absl::StatusOr<std::shared_ptr<ClientKeys>> Open(const ClientDoors& doors, const std::string& address,
                                                          absl::Time now);
  ~ClientKeys();

  // For a new channel. Reads the files where they have changed.
  std::shared_ptr<grpc::ChannelCredentials> Credentials();

 private:
  ClientKeys(const ClientDoors& doors, std::shared_ptr<ShownToken> token);

  absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> Make(absl::Time now) const;

  const ClientDoors doors_;
  const std::shared_ptr<ShownToken> token_;  // null: none is shown
  ChangingFiles files_;                      // of certificates
  std::shared_ptr<grpc::ChannelCredentials> made_;
};

// What ClientKeys has now, for a command that ends soon. Errors: ClientKeys::Open's
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> NewChannelCredentials(const ClientDoors& doors,
                                                                                const std::string& address,
                                                                                absl::Time now);

}  // namespace eps

#endif  // EPS_COMMON_GRPC_CLIENT_CREDENTIALS_H_
