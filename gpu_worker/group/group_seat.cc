#include "gpu_worker/group/group_seat.h"

#include <utility>

#include "absl/status/statusor.h"

namespace eps::worker {

void GroupSeat::Take(Device& device, uint64_t id, int rank, int size, absl::string_view token) {
  if (maker_ == nullptr) {
    Leave();
    return reports_.failed(id, absl::UnimplementedError("this worker forms no groups"));
  }
  GroupOptions options = {
      .id = id, .rank = rank, .size = size, .device = &device, .on_joined = [this, id](const absl::Status& status) {
        if (status.ok()) {
          reports_.joined(id);
        } else {
          reports_.failed(id, status);
        }
      }};
  Replace(id, nullptr);  // before the group's threads can report, and the daemon answer
  std::string own_token;
  absl::StatusOr<std::unique_ptr<Group>> group =
      rank == 0 ? maker_->Found(std::move(options), own_token) : maker_->Join(std::move(options), token);
  if (!group.ok()) {
    Leave();
    return reports_.failed(id, group.status());
  }
  Replace(id, *std::move(group));
  if (rank == 0) reports_.founded(id, own_token);
}

Group* GroupSeat::Find(uint64_t id) const {
  MutexLock lock(mu_);
  return id_ == id ? group_.get() : nullptr;
}

void GroupSeat::End(uint64_t id, absl::Status why) {
  MutexLock lock(mu_);
  if (id_ == id) EndHeld(std::move(why));
}

void GroupSeat::EndAny(absl::Status why) {
  MutexLock lock(mu_);
  EndHeld(std::move(why));
}

void GroupSeat::EndHeld(absl::Status why) {
  if (group_ != nullptr) {
    group_->End(std::move(why));
  } else if (id_ != 0 && ended_.ok()) {
    ended_ = std::move(why);
  }
}

void GroupSeat::Replace(uint64_t id, std::unique_ptr<Group> group) {
  {
    MutexLock lock(mu_);
    id_ = id;
    group_.swap(group);
    const absl::Status ended = std::exchange(ended_, absl::OkStatus());
    if (group_ != nullptr && !ended.ok()) group_->End(ended);
  }
  // The one before goes here.
}

}  // namespace eps::worker
