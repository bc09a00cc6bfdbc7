#ifndef EPS_COMMON_GRPC_SERVER_KEYS_H_
#define EPS_COMMON_GRPC_SERVER_KEYS_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/grpc/doors.h"
#include "common/security/certificates.h"
#include "common/security/file_stamps.h"
#include "common/security/token.h"

namespace eps {

// What the files of a daemon's doors hold; empty, what has no file.
struct ServerKeys {
  KeyPair pair;
  CaCertificates client_ca;
  std::vector<KnownToken> tokens;

  // When the first of the certificates ends: those of --tls-cert, and of --tls-client-ca where it holds one alone;
  // InfiniteFuture without TLS.
  absl::Time expires() const;
};

// Reads and checks every file. Errors: LoadKeyPair's, LoadCa's, ReadTokens'
absl::StatusOr<ServerKeys> ReadServerKeys(const ServerDoors& doors, absl::Time now);

// The keys of a daemon's doors, as their files are: it looks at these again and again, and reads them when they are
// others than before and have then stayed as they are from one look to the next, so that a set of which half is written
// is not taken for a new one. Files that cannot be taken change nothing: the keys from before go on, the log says why,
// and each look tries anew. Of certificates that end within two weeks the log warns at first, with each change, and
// once a day.
//
// Threads: safe, but for Look
class ServerKeysWatch {
 public:
  // With a thread that looks each `every`; without one where that is infinite, or there are no files.
  // Errors: ReadServerKeys' · StartThread's
  static absl::StatusOr<std::shared_ptr<ServerKeysWatch>> Begin(const ServerDoors& doors, absl::Time now,
                                                                absl::Duration every = absl::Seconds(2));
  ~ServerKeysWatch();

  const ServerDoors& doors() const { return doors_; }
  // Another pointer than before when, and only when, they have changed.
  std::shared_ptr<const ServerKeys> keys() const;
  // Whether the files have changed, and cannot be taken as they are.
  bool is_stale() const;

  // What the thread does each time; for tests without one.
  void Look(absl::Time now);

 private:
  ServerKeysWatch(const ServerDoors& doors, FileStamps stamps, ServerKeys keys, absl::Time now);

  void Run(absl::Duration every);
  void WarnOfExpiry(const ServerKeys& keys, absl::Time now);

  const ServerDoors doors_;

  // Of who looks.
  FileStamps stamps_;
  bool is_to_read_ = false;  // the files are others than those that were read last
  std::string refusal_;      // what the log has said of them
  absl::Time warn_again_;

  mutable Mutex mu_;
  CondVar end_changed_;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  bool is_stale_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const ServerKeys> keys_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace eps

#endif  // EPS_COMMON_GRPC_SERVER_KEYS_H_
