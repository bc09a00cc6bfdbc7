#ifndef EPS_COMMON_GRPC_SERVER_KEYS_H_
#define EPS_COMMON_GRPC_SERVER_KEYS_H_

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/grpc/doors.h"
#include "common/grpc/keys_state.h"
#include "common/security/certificates.h"
#include "common/security/changing_files.h"
#include "common/security/token.h"

namespace eps {

// What a daemon shows in handshakes, and whom it believes there; empty, what has no file.
struct ServerCertificates {
  KeyPair pair;
  CaCertificates client_ca;

  // When the first of them ends: those of --tls-cert, and of --tls-client-ca where it holds one alone; InfiniteFuture
  // without TLS.
  absl::Time expires() const;
};

// Reads and checks the files. Errors: LoadKeyPair's, LoadCa's
absl::StatusOr<ServerCertificates> ReadServerCertificates(const ServerDoors& doors, absl::Time now);

// The keys of a daemon's doors, as their files are: it looks at these again and again, and reads them when they are
// others than before and have then stayed as they are from one look to the next, so that a set of which half is written
// is not taken for a new one. Certificates are read together, and tokens by themselves, as one that is to be taken back
// must not wait for a certificate. Files that cannot be taken change nothing: what was there before goes on, the log
// says why, and each look tries anew. Of certificates that end within two weeks the log warns at first, with each
// change, once a day, and when one has ended.
//
// Threads: safe, but for Look
class ServerKeysWatch {
 public:
  // With a thread that looks each `every`; without one where that is infinite, or there are no files.
  // Errors: ReadServerCertificates', ReadTokens', StartThread's
  static absl::StatusOr<std::shared_ptr<ServerKeysWatch>> Begin(const ServerDoors& doors, absl::Time now,
                                                                absl::Duration every = absl::Seconds(2));
  ~ServerKeysWatch();

  const ServerDoors& doors() const { return doors_; }
  // Never null; the same pointers as before until they were read anew. Tokens: none without a file.
  std::shared_ptr<const ServerCertificates> certificates() const;
  std::shared_ptr<const std::vector<KnownToken>> tokens() const;
  KeysState state() const;

  // What the thread does each time; for tests without one.
  void Look(absl::Time now);

 private:
  explicit ServerKeysWatch(const ServerDoors& doors);

  absl::Status ReadCertificates(absl::Time now);
  absl::Status ReadTokenList();
  void Run(absl::Duration every);
  void WarnOfExpiry(absl::Time now);

  const ServerDoors doors_;

  // Of who looks.
  ChangingFiles certificate_files_, token_file_;
  absl::Time warn_again_;

  mutable Mutex mu_;
  CondVar end_changed_;
  bool ends_ ABSL_GUARDED_BY(mu_) = false;
  std::string not_reloaded_ ABSL_GUARDED_BY(mu_);  // as KeysState's
  std::shared_ptr<const ServerCertificates> certificates_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<const std::vector<KnownToken>> tokens_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // last: it uses all of the above
};

}  // namespace eps

#endif  // EPS_COMMON_GRPC_SERVER_KEYS_H_
