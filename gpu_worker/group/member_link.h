#ifndef EPS_GPU_WORKER_GROUP_MEMBER_LINK_H_
#define EPS_GPU_WORKER_GROUP_MEMBER_LINK_H_

#include <poll.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/mutex.h"
#include "common/ipc/unix_socket.h"

namespace eps::worker {

// The members of a group know of each other: rank 0 listens on a Unix socket of its user, whose path is the token, and
// each other member keeps a connection to it. When one ends, or its process does, all of them do, with the first reason
// where it could still be told.
//
// Threads: End and status from any; its own thread calls back
class MemberLink {
 public:
  struct Options {
    uint64_t id = 0;  // of the group: who comes with another is turned away
    int rank = 0, size = 2;
    // Rank 0: a descriptor for each that joins (it stays the caller's); -1: none.
    int welcome_file = -1;
    // The others: what came with the welcome, before on_joined. Its error ends the link.
    std::function<absl::Status(Packet welcome)> on_welcome = nullptr;
    std::function<void(absl::Status)> on_joined;  // once: all are there, or why not
    // Once, with status(): from whoever ended it.
    std::function<void(const absl::Status&)> on_end;
  };
  // Rank 0: begins to listen; `token` is for the others.
  // Errors: INVALID_ARGUMENT a rank or size that cannot be · LocalListener's · UNAVAILABLE no thread, or no descriptor
  static absl::StatusOr<std::unique_ptr<MemberLink>> Listen(Options options, std::string& token);
  // The others. What is wrong with the token is told by on_joined.
  static absl::StatusOr<std::unique_ptr<MemberLink>> Connect(Options options, std::string token);
  // Ends it. No callback is running or comes afterwards.
  ~MemberLink();

  // OK, or ABORTED: "the group has ended: ", then "member RANK: " where that began with another one, and its reason, as
  // it was told. A reason of more than some 500 bytes reaches the others without its beginning.
  absl::Status status() const ABSL_LOCKS_EXCLUDED(mu_);
  // `reason`: of this member. Its message alone goes on to the others.
  void End(const absl::Status& reason) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Member {
    int rank = 0;
    FileDescriptor socket;
  };
  // Where an end began, and why: what members tell each other, so that each says it in words of its own.
  struct Cause {
    int rank = 0;
    std::string reason;  // "": the member is gone, and has told none
  };
  MemberLink(Options options, std::optional<LocalListener> listener, std::string path)
      : options_(std::move(options)), path_(std::move(path)), listener_(std::move(listener)) {}
  absl::Status Start();
  void Watch();
  absl::Status WelcomeAll();
  absl::StatusOr<int> ReceiveHello(const FileDescriptor& socket, const std::vector<bool>& here) const;
  absl::Status Join();
  void AwaitEnd();
  void EndBy(Cause cause) ABSL_LOCKS_EXCLUDED(mu_);
  void SayWhy();
  std::vector<pollfd> Polled() const;
  // Nothing: they are all there.
  std::optional<Cause> WhyOthersEnd(const std::vector<pollfd>& polled) const;
  std::string Shown(const Cause& cause) const;
  static std::string ToWord(const Cause& cause);
  Cause FromWord(absl::string_view word, int speaker) const;

  // Fixed after construction.
  const Options options_;
  const std::string path_;  // of rank 0's socket; there ""
  FileDescriptor wake_;     // an eventfd: it has ended
  // Of its own thread.
  std::optional<LocalListener> listener_;
  std::vector<Member> sockets_;

  mutable Mutex mu_;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  Cause cause_ ABSL_GUARDED_BY(mu_);  // of status_

  std::thread watcher_;  // last: it uses all of the above
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_MEMBER_LINK_H_
