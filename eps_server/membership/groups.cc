#include "eps_server/membership/groups.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eps::server {
namespace {

// Connecting takes milliseconds over shared memory. NCCL looks at all links first, loads its kernels and connects every
// two: seconds, and with eight GPUs of a machine that has just started many of them. Steps wait.
constexpr absl::Duration kTimeToForm = absl::Seconds(60);

}  // namespace

std::vector<GroupOrder> Groups::Arrange(absl::Span<const Candidate> ready, absl::Duration now) {
  std::map<std::string, std::vector<std::vector<WorkerId>>> wanted;  // by kind
  for (const Candidate& candidate : ready) {
    if (candidate.kind.empty() || left_out_.contains(candidate.worker)) continue;
    std::vector<std::vector<WorkerId>>& groups = wanted[candidate.kind];
    if (groups.empty() || groups.back().size() >= max_members_) groups.emplace_back();
    groups.back().push_back(candidate.worker);
  }
  std::vector<GroupOrder> orders;
  std::vector<uint64_t> changed;
  for (const auto& [id, group] : groups_) {
    if (std::erase(wanted[group.kind], group.members) == 0) changed.push_back(id);
  }
  for (const uint64_t id : changed) End(id, "its members change", WorkerId(), orders);
  for (auto& [kind, groups] : wanted) {
    for (std::vector<WorkerId>& members : groups) {
      if (members.size() < 2 || failed_.contains(members)) continue;
      const uint64_t id = new_id_();
      orders.push_back({.kind = GroupOrder::Kind::kFound,
                        .worker = members.front(),
                        .group = id,
                        .rank = 0,
                        .size = static_cast<int>(members.size())});
      groups_.emplace(id,
                      Group{.kind = kind, .members = std::move(members), .joined = {}, .deadline = now + kTimeToForm});
    }
  }
  return orders;
}

absl::Status Groups::Founded(WorkerId worker, uint64_t group, const std::string& token,
                             std::vector<GroupOrder>& orders) {
  if (token.size() > kMaxGroupTokenBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_founded.token: ", token.size(), " bytes, at most ", kMaxGroupTokenBytes));
  }
  const auto found = groups_.find(group);
  if (found == groups_.end()) return absl::OkStatus();
  const std::vector<WorkerId>& members = found->second.members;
  if (members.front() != worker) {
    return absl::InvalidArgumentError(
        absl::StrCat("group_founded.group: worker ", worker.value(), " was not asked to found it"));
  }
  if (std::exchange(found->second.founded, true)) {
    return absl::InvalidArgumentError("group_founded.group: it was founded before");
  }
  for (size_t rank = 1; rank < members.size(); ++rank) {
    orders.push_back({.kind = GroupOrder::Kind::kJoin,
                      .worker = members[rank],
                      .group = group,
                      .rank = static_cast<int>(rank),
                      .size = static_cast<int>(members.size()),
                      .token = token});
  }
  return absl::OkStatus();
}

bool Groups::Joined(WorkerId worker, uint64_t group) {
  const auto found = groups_.find(group);
  if (found == groups_.end() || !found->second.founded) return false;
  const std::vector<WorkerId>& members = found->second.members;
  if (std::find(members.begin(), members.end(), worker) == members.end()) return false;
  return found->second.joined.insert(worker).second && found->second.is_formed();
}

bool Groups::Failed(WorkerId worker, uint64_t group, const std::string& why, std::vector<GroupOrder>& orders) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return false;
  const std::vector<WorkerId>& members = found->second.members;
  if (std::find(members.begin(), members.end(), worker) == members.end()) return false;
  if (found->second.is_formed()) {
    failed_.insert(members);
  } else {
    left_out_.emplace(worker, members);
  }
  End(group, absl::StrCat("worker ", worker.value(), ": ", why), worker, orders);
  return true;
}

std::vector<GroupOrder> Groups::Lose(WorkerId worker, std::vector<uint64_t>& lost) {
  std::vector<GroupOrder> orders;
  for (const auto& [id, group] : groups_) {
    if (std::find(group.members.begin(), group.members.end(), worker) != group.members.end()) lost.push_back(id);
  }
  for (const uint64_t id : lost) End(id, absl::StrCat("worker ", worker.value(), " is gone"), worker, orders);
  std::erase_if(left_out_, [worker](const auto& entry) {
    return std::find(entry.second.begin(), entry.second.end(), worker) != entry.second.end();
  });
  return orders;
}

std::vector<GroupOrder> Groups::Expire(absl::Duration now) {
  std::vector<GroupOrder> orders;
  std::vector<uint64_t> late;
  for (const auto& [id, group] : groups_) {
    if (!group.is_formed() && group.deadline <= now) late.push_back(id);
  }
  for (const uint64_t id : late) {
    LeaveOutWhoIsLate(groups_.at(id));
    End(id, absl::StrCat("not all have joined within ", absl::FormatDuration(kTimeToForm)), WorkerId(), orders);
  }
  return orders;
}

void Groups::LeaveOutWhoIsLate(const Group& group) {
  if (!group.founded) {
    left_out_.emplace(group.members.front(), group.members);
    return;
  }
  // Rank 0 has joined when all the others have.
  bool others_joined = true;
  for (size_t rank = 1; rank < group.members.size(); ++rank) {
    if (group.joined.contains(group.members[rank])) continue;
    left_out_.emplace(group.members[rank], group.members);
    others_joined = false;
  }
  if (others_joined) left_out_.emplace(group.members.front(), group.members);
}

bool Groups::IsForming() const {
  return std::any_of(groups_.begin(), groups_.end(), [](const auto& entry) { return !entry.second.is_formed(); });
}

std::vector<Groups::Formed> Groups::formed() const {
  std::vector<Formed> formed;
  for (const auto& [id, group] : groups_) {
    if (group.is_formed()) formed.push_back({.group = id, .members = group.members});
  }
  return formed;
}

void Groups::End(uint64_t group, const std::string& why, WorkerId except, std::vector<GroupOrder>& orders) {
  for (const WorkerId member : groups_.at(group).members) {
    if (member == except) continue;
    orders.push_back({.kind = GroupOrder::Kind::kEnd, .worker = member, .group = group, .reason = why});
  }
  groups_.erase(group);
}

}  // namespace eps::server
