#ifndef EPS_GPU_WORKER_RELAY_FAKE_GROUP_H_
#define EPS_GPU_WORKER_RELAY_FAKE_GROUP_H_

#include <utility>

#include "absl/status/status.h"
#include "gpu_worker/group/group.h"

namespace eps::worker {

// For tests of one member, the second of two: the other has nothing to give.
class FakeGroup : public Group {
 public:
  int rank() const override { return 1; }
  int size() const override { return 2; }
  void Enqueue(GroupLane lane, Exchange) override {
    ++(lane == GroupLane::kPull ? pulls_ : pushes_);
    if (loses_a_member_) End(absl::AbortedError("member 0 is gone"));
  }
  // Its exchanges end all the same, as on a GPU.
  void LoseAMember() { loses_a_member_ = true; }
  absl::Status status() const override { return status_; }
  void End(absl::Status reason) override { status_ = std::move(reason); }
  // Exchanges, by lane.
  int pulls() const { return pulls_; }
  int pushes() const { return pushes_; }

 private:
  int pulls_ = 0, pushes_ = 0;
  bool loses_a_member_ = false;
  absl::Status status_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_FAKE_GROUP_H_
