#ifndef EPS_GPU_WORKER_GROUP_GROUP_H_
#define EPS_GPU_WORKER_GROUP_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "gpu_worker/device/device.h"

namespace eps::worker {

// What one member gives to each other member, and gets from it, in one exchange: device memory, by rank. Its own place
// is empty, and so may others be. What i gives to j has the lengths, span for span, of what j gets from
// i; empty spans do not count.
struct Exchange {
  std::vector<std::vector<absl::Span<const std::byte>>> gives;
  std::vector<std::vector<absl::Span<std::byte>>> gets;
};

// Exchanges are enqueued in one order over both lanes, which must be the same for all members: those of a lane happen one
// after another, and one of the other lane may have to wait for all that were enqueued before it. kPull runs in the
// device's in-stream, kPush in its out-stream.
enum class GroupLane { kPull, kPush };
inline constexpr int kNumGroupLanes = 2;
inline Stream& StreamOf(Device& device, GroupLane lane) {
  return device.stream(lane == GroupLane::kPull ? StreamId::kIn : StreamId::kOut);
}

// Workers of one host that share the way between the daemon and their devices: each pulls a part of every blob and gets
// the others' parts from the other members; each gets every member's gradients of its part, adds them in the order of
// the reduction tree and pushes the sum (gpu_worker/plan/group_parts.h says who does what).
//
// One primitive is enough: an all-gather is an exchange in which each gives its part to all, and a reduce-scatter one in
// which each gives each other the part that is the other's, followed by sums in a fixed order on the device. On links
// that join every pair that is as many bytes a link as a ring takes (n - 1 of n parts), and no order is given up for
// speed: a group's bits are those of its members alone.
//
// A group that a member is lost of does not go on: exchanges under way and to come fail, and what they were to bring is
// not there. Its members go on alone, or in another group.
//
// Errors:  of an exchange, in the stream: ABORTED the group has ended, with the first reason, which may be this exchange's
//          own · INTERNAL the members do not exchange the same, where the kind looks
// Threads: Enqueue, of both lanes, from one thread at a time; the rest from any
// Conformance: gpu_worker/group/group_conformance.h
class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Enqueues an exchange in the lane's stream; what comes after it there finds what was got. It may be enqueued before
  // the other members have joined.
  virtual void Enqueue(GroupLane lane, Exchange exchange) = 0;

  // OK while the group stands; else ABORTED with its first reason, behind "member RANK: " where it began with another one,
  // as it was told: who shows it escapes it. Who uses what an exchange brought looks here afterwards: on a GPU an exchange
  // that was cut short ends like one that was not. May wait some seconds for the reason: not under a lock, nor from
  // on_joined.
  virtual absl::Status status() const = 0;
  // Ends the group, for this member and soon for the others. Returns at once.
  virtual void End(absl::Status reason) = 0;
};

// Ends the group, if there is one, where `status` is an error, and returns it: what failed here never comes to the other
// members, and they are told.
inline absl::Status EndOnError(Group* group, absl::Status status) {
  if (!status.ok() && group != nullptr) group->End(status);
  return status;
}

struct GroupOptions {
  uint64_t id = 0;  // of the group, from the daemon: who joins another one by mistake is turned away
  int rank = 0;
  int size = 2;
  Device* device = nullptr;  // whose memory is exchanged; it outlives the group
  // Once, on a thread of the group's own: every member has joined, or why not. It may not destroy the group.
  std::function<void(absl::Status)> on_joined;
};

// A way to form groups. `token` is what rank 0 tells the others through the daemon: at most kMaxGroupTokenBytes.
class GroupMaker {
 public:
  virtual ~GroupMaker() = default;
  // Groups are formed of workers whose makers say the same: the kind, and what else must be alike.
  virtual std::string kind() const = 0;
  // Rank 0: makes a token, and a group that the others join with it.
  virtual absl::StatusOr<std::unique_ptr<Group>> Found(GroupOptions options, std::string& token) = 0;
  // The other ranks. Returns at once; whether it came about is told by on_joined.
  virtual absl::StatusOr<std::unique_ptr<Group>> Join(GroupOptions options, absl::string_view token) = 0;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_GROUP_H_
