#ifndef EPS_GPU_WORKER_GROUP_GROUP_SEAT_H_
#define EPS_GPU_WORKER_GROUP_GROUP_SEAT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/group/group.h"

namespace eps::worker {

// This worker's place in a group: at most one at a time.
//
// Threads: End and EndAny from any; the rest from the one that runs passes, and only while no pass is under way
class GroupSeat {
 public:
  // Who is told what becomes of a group; from any thread, not under a lock of this.
  struct Reports {
    std::function<void(uint64_t group, const std::string& token)> founded;
    std::function<void(uint64_t group)> joined;
    std::function<void(uint64_t group, const absl::Status& why)> failed;
  };
  // maker: null: this worker forms none, and every attempt fails.
  GroupSeat(std::unique_ptr<GroupMaker> maker, Reports reports)
      : maker_(std::move(maker)), reports_(std::move(reports)) {}

  // GroupMaker::kind; "": it forms none.
  std::string kind() const { return maker_ == nullptr ? "" : maker_->kind(); }
  // Takes part in a group with `device`, as rank 0 its founder, in place of the one before. What becomes of it is reported.
  void Take(Device& device, uint64_t group, int rank, int size, absl::string_view token) ABSL_LOCKS_EXCLUDED(mu_);
  // Whatever group this worker is in. Its last report may come meanwhile, and none afterwards.
  void Leave() { Replace(0, nullptr); }
  // Null: this worker is not in that group.
  Group* Find(uint64_t group) const ABSL_LOCKS_EXCLUDED(mu_);
  // The group has ended, says the daemon: a pass in it fails at once. Quiet if it is another's. While Take is making
  // the group it is kept, and ends it then: the members may have joined, and one of them be lost, before Take returns.
  void End(uint64_t group, absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);
  // Whatever group it is, likewise: what a pass in it waits for may never come.
  void EndAny(absl::Status why) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // `id` without a group: Take is making it. Ends `group` if an end of it has come meanwhile. Destroys the one before without
  // the lock: its threads report.
  void Replace(uint64_t id, std::unique_ptr<Group> group) ABSL_LOCKS_EXCLUDED(mu_);
  void EndHeld(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Fixed after construction.
  const std::unique_ptr<GroupMaker> maker_;
  const Reports reports_;

  mutable Mutex mu_;
  uint64_t id_ ABSL_GUARDED_BY(mu_) = 0;               // 0: in none
  std::unique_ptr<Group> group_ ABSL_GUARDED_BY(mu_);  // null: in none, or it is being taken
  absl::Status ended_ ABSL_GUARDED_BY(mu_);            // why, if that came while it was being taken
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_GROUP_SEAT_H_
