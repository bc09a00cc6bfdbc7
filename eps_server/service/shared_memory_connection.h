#ifndef EPS_SERVER_SERVICE_SHARED_MEMORY_CONNECTION_H_
#define EPS_SERVER_SERVICE_SHARED_MEMORY_CONNECTION_H_

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/file_util.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/shared_message.h"
#include "common/formats/wire_layout.h"
#include "common/ipc/packet_channel.h"
#include "common/ipc/shared_segment.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/service/incoming_contributions.h"
#include "eps_server/service/shared_memory_server.h"

namespace eps::server {

// One worker's connection. Whatever the peer says is checked; what makes no sense ends the connection, with a reason in
// the log and, if the peer reads it, in a last message.
//
// Chunks: what is admitted stands in one queue, and copiers share out the chunks of what stands in front: each takes the
// next one under the lock, so in order, and hands it over without. One of which nothing else is missing is lent: the
// optimizer reads it in the inbox (docs/decisions/0020-gradients-read-in-the-inbox.md). Any other is copied, and so is what
// comes while half of the inbox is lent: the other half is for what the worker goes on to. A contribution is answered once
// its last copy has ended and its last lent chunk is back: from then on nobody reads its memory.
//
// Threads: Run from one, which starts options.copiers others; Close from any. Answers of store and aggregator may come
//          after the end, so it is kept alive by them.
class SharedMemoryConnection : public std::enable_shared_from_this<SharedMemoryConnection> {
 public:
  SharedMemoryConnection(const SharedMemoryOptions& options, FileDescriptor socket);

  // Serves until the peer is gone or wrong, or Close.
  void Run() ABSL_LOCKS_EXCLUDED(mu_);
  void Close(absl::Status reason) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // What lies in the inbox and is to be taken: all of a contribution, or one staged chunk of it.
  struct Copy {
    uint32_t number = 0;
    ContributionKey key;
    int64_t offset_bytes = 0;  // of what is not taken
    int64_t next_chunk = 0;
    bool staged = false;
  };
  // A chunk that one copier has taken.
  struct TakenChunk {
    uint32_t number = 0;
    ContributionKey key;
    int64_t chunk = 0;
    int64_t offset_bytes = 0;
    int64_t num_bytes = 0;
    bool staged = false;
    bool wanted = false;  // false: a staged one that was there already
  };
  // Of a contribution, while copiers or the optimizer are at it.
  struct Reading {
    int under_way = 0;  // copies, and chunks that are lent
    bool all_taken = false;
    bool complete = false;
  };

  absl::Status ShakeHands() ABSL_LOCKS_EXCLUDED(mu_);
  absl::StatusOr<SharedMessage> ReceiveHello() ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Handle(absl::string_view packet) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status HandlePull(const SharedMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status HandleRead(const SharedMessage& message) const;
  absl::Status HandleOffer(const SharedMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status HandleChunk(const SharedMessage& message) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status CheckWeights(const SharedMessage& message) const;
  void CountPulled(const SharedMessage& message) const;
  absl::Status CheckPayload(const SharedMessage& offer) const;

  void OnPublished(const SharedMessage& pull, const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  void OnVerdict(uint32_t number, const ContributionKey& key, int64_t offset_bytes,
                 const absl::StatusOr<Verdict>& verdict) ABSL_LOCKS_EXCLUDED(mu_);

  // One at least, or the end.
  std::vector<std::thread> StartCopiers() ABSL_LOCKS_EXCLUDED(mu_);
  // Of a copier.
  void CopyUntilEnd() ABSL_LOCKS_EXCLUDED(mu_);
  // Waits for one. Empty: the end.
  absl::StatusOr<std::optional<TakenChunk>> NextChunk() ABSL_LOCKS_EXCLUDED(mu_);
  // The first in the queue's next one, which is taken out of it. Empty: there is none, the rest of it is not wanted.
  absl::StatusOr<std::optional<TakenChunk>> TakeChunk() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status HandOver(const TakenChunk& chunk) ABSL_LOCKS_EXCLUDED(mu_);
  // Lends the chunk, unless more than half of the inbox would be lent with it: null. What is copied all the same counts
  // until AddChunk returns.
  std::shared_ptr<const std::byte> Lend(const TakenChunk& chunk) ABSL_LOCKS_EXCLUDED(mu_);
  void EndRead(uint32_t number, bool complete) ABSL_LOCKS_EXCLUDED(mu_);

  void Reply(SharedMessage message);
  void LogEnd(const absl::Status& why) const;
  // The first reason stands; the peer is told.
  void End(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mu_);
  bool ended() const ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const SharedMemoryOptions
      options_;  // of which what it points to is not there any more when the last loan is given back
  const WireLayout layout_;
  // Fixed after ShakeHands, but for the socket, which the channel takes over.
  FileDescriptor socket_;
  std::unique_ptr<PacketChannel> channel_;
  std::shared_ptr<const SharedSegment> inbox_;  // of those, too, who were lent what lies there
  WorkerId worker_;                             // as it says: for the log, nothing depends on it

  mutable Mutex mu_;
  CondVar copies_changed_;
  std::deque<Copy> copies_ ABSL_GUARDED_BY(mu_);
  std::map<uint32_t, Reading> reading_ ABSL_GUARDED_BY(mu_);  // by number
  std::array<bool, kStagingSlots> slot_in_use_ ABSL_GUARDED_BY(mu_) = {};
  int64_t lent_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  IncomingContributions contributions_ ABSL_GUARDED_BY(mu_);
  int pulls_ ABSL_GUARDED_BY(mu_) = 0;           // that are not answered
  bool connected_ ABSL_GUARDED_BY(mu_) = false;  // channel_ is there
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::server

#endif  // EPS_SERVER_SERVICE_SHARED_MEMORY_CONNECTION_H_
