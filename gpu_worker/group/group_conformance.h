#ifndef EPS_GPU_WORKER_GROUP_GROUP_CONFORMANCE_H_
#define EPS_GPU_WORKER_GROUP_GROUP_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/group/group.h"
#include "gtest/gtest.h"

namespace eps::worker {

// What every Group must do, written once, for 2, 3, 4 and 8 members. An implementation instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(SharedMemory, GroupConformanceTest, GroupCases({.name = "shared_memory", ...}));

struct GroupKind {
  std::string name;
  std::function<std::unique_ptr<GroupMaker>()> new_maker;                  // of one member
  std::function<std::unique_ptr<Device>(int64_t arena_bytes)> new_device;  // likewise
  bool finds_differences = true;  // members that do not exchange the same are told so
};
struct GroupCase {
  GroupKind kind;
  int size = 2;
};
inline std::ostream& operator<<(std::ostream& os, const GroupCase& tested) {
  return os << tested.kind.name << "_of_" << tested.size;
}
std::vector<GroupCase> GroupCases(const GroupKind& kind);

// The word of a group's own thread about who has joined.
class Joined {
 public:
  void Set(absl::Status status);
  absl::Status Wait();

 private:
  Mutex mu_;
  CondVar changed_;
  bool set_ = false;
  absl::Status status_;
};

// One worker of a test: a device with an arena, and its place in the group.
struct GroupMember {
  std::unique_ptr<Device> device;
  std::unique_ptr<GroupMaker> maker;
  Joined joined;
  std::unique_ptr<Group> group;  // first to go

  absl::Span<std::byte> Memory(int64_t offset_bytes, int64_t num_bytes) const;
  void Fill(absl::Span<std::byte> memory, const std::vector<std::byte>& bytes) const;
  std::vector<std::byte> Read(absl::Span<const std::byte> memory) const;
  Stream& stream(GroupLane lane) const;
};

class GroupConformanceTest : public testing::TestWithParam<GroupCase> {
 protected:
  // Makes the members; rank 0 founds the group. The others join where `all_join`.
  void Form(bool all_join = true);
  void Join(int rank);
  int size() const { return GetParam().size; }
  GroupMember& member(int rank) { return *members_[static_cast<size_t>(rank)]; }
  // Different for each (from, to, exchange).
  static std::vector<std::byte> Pattern(int from, int to, int number, int64_t num_bytes);
  Exchange NoExchange() const;
  // An all-gather: fills the member's part, the rank-th of parts that lie `stride` bytes apart, and gives it to all.
  Exchange OwnPartToAll(int rank, int64_t num_bytes, int64_t stride);

  std::vector<std::unique_ptr<GroupMember>> members_;
  std::string token_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_GROUP_GROUP_CONFORMANCE_H_
