#ifndef EPS_COMMON_IPC_PACKET_CHANNEL_H_
#define EPS_COMMON_IPC_PACKET_CHANNEL_H_

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/mutex.h"

namespace eps {

// One end of a SOCK_SEQPACKET connection. Nobody who sends is ever blocked: what the peer does not take yet is queued.
//
// Threads: Run from one; Send and Close from any, also from `on_packet`
class PacketChannel {
 public:
  struct Options {
    std::string peer = "the peer";   // what messages call it
    size_t max_packet_bytes = 4096;  // of a packet that is received
    size_t max_queued = 4096;        // packets that the peer has not taken; one more ends the channel
  };
  // `socket` is connected and non-blocking. Errors: RESOURCE_EXHAUSTED too many open files
  static absl::StatusOr<std::unique_ptr<PacketChannel>> Create(FileDescriptor socket, Options options);

  // Quiet once the channel has ended: Run says why. A packet that cannot be sent to a peer that lives ends it.
  void Send(std::string packet) ABSL_LOCKS_EXCLUDED(mu_);

  // Calls `on_packet` for each packet, in order, until the channel ends, and returns its first reason: UNAVAILABLE the
  // peer is gone, or cannot be sent to · INVALID_ARGUMENT too long a packet · RESOURCE_EXHAUSTED the peer takes none ·
  // what `on_packet` returned · Close's reason.
  absl::Status Run(const std::function<absl::Status(absl::string_view)>& on_packet) ABSL_LOCKS_EXCLUDED(mu_);

  // Ends the channel. `last_word`, if not empty, is sent if the peer takes it at once; nothing after it.
  void Close(absl::Status reason, absl::string_view last_word = "") ABSL_LOCKS_EXCLUDED(mu_);

 private:
  PacketChannel(FileDescriptor socket, FileDescriptor wake, Options options)
      : socket_(std::move(socket)), wake_(std::move(wake)), options_(std::move(options)) {}

  enum class Sent { kYes, kLater, kNever };
  Sent TrySend(absl::string_view packet) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Wake() const;
  absl::Status PeerIsGone() const;
  void Flush() ABSL_LOCKS_EXCLUDED(mu_);
  // Receives what is there, a few packets at most.
  absl::Status Receive(const std::function<absl::Status(absl::string_view)>& on_packet) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns true once the channel has ended; else whether something is queued.
  bool Ended(bool* queued) ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const FileDescriptor socket_;
  const FileDescriptor wake_;  // an eventfd: the queue or the end has changed
  const Options options_;
  // Of Run's thread.
  std::string buffer_;
  bool reset_ = false;

  Mutex mu_;
  std::deque<std::string> queue_ ABSL_GUARDED_BY(mu_);
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_COMMON_IPC_PACKET_CHANNEL_H_
