#include "eps_server/step/vnode_ledger.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/schedule/reduction_tree.h"
#include "eps_server/data/step_data.h"

namespace eps::server {

VnodeLedger::VnodeLedger(StepId step, std::vector<VnodeBatch> batches, ToldExperts told) : step_(step), told_(told) {
  for (VnodeBatch& batch : batches) {
    Entry& entry = vnodes_.emplace_back();
    entry.counted_tokens = CountedTokens(batch);
    num_tokens_ += static_cast<int64_t>(batch.tokens.size()) - batch.num_padding;
    entry.batch = std::move(batch);
    counted_tokens_ += entry.counted_tokens;
  }
}

std::vector<int> VnodeLedger::Unassigned() const {
  std::vector<int> unassigned;
  for (size_t v = 0; v < vnodes_.size(); ++v) {
    if (!vnodes_[v].holder.has_value()) unassigned.push_back(static_cast<int>(v));
  }
  return unassigned;
}

Assignment VnodeLedger::Assign(WorkerId worker, absl::Span<const int> vnodes, std::optional<GroupVnodes> group) {
  is_fresh_ = false;
  Assignment assignment{.step = step_, .counted_tokens = counted_tokens_, .vnodes = {}, .group = std::move(group)};
  for (const int vnode : vnodes) {
    Entry& entry = vnodes_[vnode];
    EPS_CHECK(!entry.holder.has_value());
    entry.holder = worker;
    if (entry.record.has_value()) --records_in_;
    entry.record.reset();
    entry.group = assignment.group.has_value() ? assignment.group->group : 0;
    assignment.vnodes.push_back(entry.batch);
  }
  return assignment;
}

int VnodeLedger::Lose(WorkerId worker, const std::vector<bool>& missing) {
  int lost = 0;
  for (size_t v = 0; v < vnodes_.size(); ++v) {
    Entry& entry = vnodes_[v];
    if (entry.holder != worker || IsDone(v, missing)) continue;
    entry.holder.reset();
    entry.was_lost = true;
    ++lost;
  }
  return lost;
}

int VnodeLedger::LoseGroup(uint64_t group, const std::vector<bool>& missing) {
  int lost = 0;
  for (size_t v = 0; v < vnodes_.size(); ++v) {
    Entry& entry = vnodes_[v];
    if (group == 0 || entry.group != group) continue;
    entry.group = 0;
    if (!entry.holder.has_value() || IsDone(v, missing)) continue;
    entry.holder_in_lost_group = std::exchange(entry.holder, std::nullopt);
    entry.was_lost = true;
    ++lost;
  }
  return lost;
}

bool VnodeLedger::Holds(WorkerId worker) const { return !VnodesOf(worker).empty(); }

bool VnodeLedger::TakesPart(WorkerId worker) const {
  return std::any_of(vnodes_.begin(), vnodes_.end(), [&](const Entry& entry) {
    return entry.holder == worker || entry.holder_in_lost_group == worker;
  });
}

std::vector<int> VnodeLedger::VnodesOf(WorkerId worker) const {
  std::vector<int> vnodes;
  for (size_t v = 0; v < vnodes_.size(); ++v) {
    if (vnodes_[v].holder == worker) vnodes.push_back(static_cast<int>(v));
  }
  return vnodes;
}

bool VnodeLedger::IsRunning(WorkerId worker) const {
  for (const Entry& entry : vnodes_) {
    if (entry.holder == worker && !entry.record.has_value()) return true;
  }
  return false;
}

std::map<WorkerId, std::vector<int>> VnodeLedger::Unfinished(const std::vector<bool>& missing) const {
  std::map<WorkerId, std::vector<int>> unfinished;
  for (size_t v = 0; v < vnodes_.size(); ++v) {
    const Entry& entry = vnodes_[v];
    if (IsDone(v, missing)) continue;
    unfinished[entry.holder.value_or(WorkerId())].push_back(static_cast<int>(v));
  }
  return unfinished;
}

std::map<WorkerId, std::vector<int>> VnodeLedger::HoldersOf(const std::vector<bool>& vnodes) const {
  std::map<WorkerId, std::vector<int>> holders;
  for (size_t v = 0; v < vnodes_.size(); ++v) {
    if (vnodes[v]) holders[vnodes_[v].holder.value_or(WorkerId())].push_back(static_cast<int>(v));
  }
  return holders;
}

absl::Status VnodeLedger::Check(WorkerId worker, const VnodeRecord& record) const {
  if (record.vnode < 0 || static_cast<size_t>(record.vnode) >= vnodes_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("pass_done.records.vnode: ", record.vnode, ", must be 0 to ", vnodes_.size() - 1));
  }
  const Entry& entry = vnodes_[record.vnode];
  if (entry.holder != worker && entry.holder_in_lost_group != worker) {
    return absl::InvalidArgumentError(
        absl::StrCat("pass_done.records.vnode: ", record.vnode, " was not assigned to worker ", worker.value()));
  }
  if (record.counted_tokens != entry.counted_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("pass_done.records.counted_tokens: ", record.counted_tokens,
                                                   ", vnode ", record.vnode, " has ", entry.counted_tokens));
  }
  if (record.correct < 0 || record.correct > record.counted_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("pass_done.records.correct: ", record.correct, ", must be 0 to ",
                                                   record.counted_tokens, ", as many as vnode ", record.vnode,
                                                   " counts"));
  }
  EPS_RETURN_IF_ERROR_WITH(CheckExpertRows(record.expert_rows, told_, static_cast<int64_t>(entry.batch.tokens.size())),
                           absl::StrCat("pass_done.records.expert_rows of vnode ", record.vnode));
  return absl::OkStatus();
}

absl::Status VnodeLedger::AddRecords(WorkerId worker, absl::Span<const VnodeRecord> records) {
  for (const VnodeRecord& record : records) EPS_RETURN_IF_ERROR(Check(worker, record));
  for (const VnodeRecord& record : records) {
    Entry& entry = vnodes_[record.vnode];
    if (entry.record.has_value() || entry.holder.value_or(worker) != worker) continue;
    entry.record = record;
    entry.record->finite = record.finite && std::isfinite(record.loss_sum);
    ++records_in_;
    if (entry.was_lost && entry.holder.has_value()) {  // else of a member of the group that is over
      ++redone_;
      entry.was_lost = false;
    }
  }
  return absl::OkStatus();
}

std::optional<int> VnodeLedger::NonfiniteVnode() const {
  for (size_t v = 0; v < vnodes_.size(); ++v) {
    if (vnodes_[v].record.has_value() && !vnodes_[v].record->finite) return static_cast<int>(v);
  }
  return std::nullopt;
}

VnodeTotals VnodeLedger::Totals() const {
  EPS_CHECK(AllRecordsIn());
  VnodeTotals totals{.counted_tokens = counted_tokens_};
  std::vector<TreeNode> leaves;
  for (int v = 0; v < static_cast<int>(vnodes_.size()); ++v) {
    leaves.push_back({v, 1});
    totals.correct += vnodes_[v].record->correct;
  }
  const std::vector<SumOp> program = SumProgram(leaves, static_cast<int>(leaves.size()));
  const auto sum_of = [&](double VnodeRecord::*member) {
    std::vector<double> stack;
    for (const SumOp& op : program) {
      if (op.kind == SumOp::Kind::kLoad) {
        stack.push_back(*vnodes_[op.operand].record.*member);
      } else {
        const double right = stack.back();
        stack.pop_back();
        stack.back() += right;
      }
    }
    return stack.back();
  };
  totals.loss_sum = sum_of(&VnodeRecord::loss_sum);
  totals.chosen_reward = sum_of(&VnodeRecord::chosen_reward);
  totals.rejected_reward = sum_of(&VnodeRecord::rejected_reward);
  return totals;
}

double VnodeLedger::Loss() const {
  if (counted_tokens_ == 0) return std::numeric_limits<double>::quiet_NaN();  // 0 / 0 has a sign on some machines
  return Totals().loss_sum / static_cast<double>(counted_tokens_);
}

std::vector<int64_t> VnodeLedger::TotalExpertRows() const {
  EPS_CHECK(AllRecordsIn());
  std::vector<int64_t> totals(static_cast<size_t>(told_.size()));
  for (const Entry& entry : vnodes_) {
    for (size_t i = 0; i < totals.size(); ++i) totals[i] += entry.record->expert_rows[i];
  }
  return totals;
}

}  // namespace eps::server
