#ifndef EPS_SERVER_MEMBERSHIP_GROUPS_H_
#define EPS_SERVER_MEMBERSHIP_GROUPS_H_

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/group_limits.h"

namespace eps::server {

// What the daemon tells a worker of a group.
struct GroupOrder {
  enum class Kind { kFound, kJoin, kEnd } kind = Kind::kFound;
  WorkerId worker;     // who is told
  uint64_t group = 0;  // never 0
  int rank = 0, size = 0;
  std::string token;   // kJoin: rank 0's
  std::string reason;  // kEnd
};

// What a worker says of one.
struct GroupReport {
  enum class Kind { kFounded, kJoined, kFailed } kind = Kind::kJoined;
  uint64_t group = 0;
  std::string text;  // kFounded: the token; kFailed: why
};

// Which workers pull and push together. Workers that say the same of themselves (WorkerMemory::group_kind) form a group:
// the one with the lowest id founds it, and tells a token that the others join with. A group that has lost a member, or
// that any member says has failed, is over for all of them; the same workers are not brought together again, and who could
// not join is left out from then on, or until another member of that group is lost, who may have been the reason.
//
// Threads: none of its own; the owner guards it.
class Groups {
 public:
  // `new_id`: of a group; never 0, and hard to guess. max_members: of a group; with 1 none is formed.
  Groups(std::function<uint64_t()> new_id, int max_members)
      : new_id_(std::move(new_id)), max_members_(static_cast<size_t>(std::min(max_members, kMaxGroupMembers))) {}

  struct Candidate {
    WorkerId worker;
    std::string kind;  // "": it forms no groups
  };
  // Between steps. `ready`: by rising id. Those of a kind are taken in turn, as many as a group may have; ends the groups
  // that have other members now, and begins to form what can be.
  std::vector<GroupOrder> Arrange(absl::Span<const Candidate> ready, absl::Duration now);

  // Rank 0's word. A group that is over meanwhile is none.
  // Errors: INVALID_ARGUMENT naming the field: the token is too long, another's to tell, or told already
  absl::Status Founded(WorkerId worker, uint64_t group, const std::string& token, std::vector<GroupOrder>& orders);
  // True if it was the last that was missing.
  bool Joined(WorkerId worker, uint64_t group);
  // A member says that it is over, or that it cannot join it: then the others form one without it. True if it was not over
  // before.
  bool Failed(WorkerId worker, uint64_t group, const std::string& why, std::vector<GroupOrder>& orders);
  // A worker is gone. `lost`: the groups that it was a member of, now over.
  std::vector<GroupOrder> Lose(WorkerId worker, std::vector<uint64_t>& lost);
  // Those that were not joined in time.
  std::vector<GroupOrder> Expire(absl::Duration now);

  // Members of a group that is not over.
  size_t size(uint64_t group) const { return groups_.at(group).members.size(); }
  // Some group may yet come about: worth waiting for with a step's assignments.
  bool IsForming() const;

  struct Formed {
    uint64_t group = 0;
    std::vector<WorkerId> members;  // by rank
  };
  // Those that every member has joined.
  std::vector<Formed> formed() const;

 private:
  struct Group {
    std::string kind;
    std::vector<WorkerId> members;  // by rank: rising ids
    bool founded = false;
    std::set<WorkerId> joined;
    absl::Duration deadline;  // to have been joined by all
    bool is_formed() const { return joined.size() == members.size(); }
  };
  void LeaveOutWhoIsLate(const Group& group);
  // Over for all of them, but not for `except`, who knows or is gone.
  void End(uint64_t group, const std::string& why, WorkerId except, std::vector<GroupOrder>& orders);

  const std::function<uint64_t()> new_id_;
  const size_t max_members_;
  std::map<uint64_t, Group> groups_;
  std::set<std::vector<WorkerId>> failed_;              // members of groups that failed once they were formed
  std::map<WorkerId, std::vector<WorkerId>> left_out_;  // who could not join one, and that one's members
};

}  // namespace eps::server

#endif  // EPS_SERVER_MEMBERSHIP_GROUPS_H_
