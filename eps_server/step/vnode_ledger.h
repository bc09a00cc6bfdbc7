#ifndef EPS_SERVER_STEP_VNODE_LEDGER_H_
#define EPS_SERVER_STEP_VNODE_LEDGER_H_

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/expert_rows.h"
#include "common/schedule/vnode_batch.h"

namespace eps::server {

// What all vnodes together make: sums in the reduction tree's order, in fp64.
struct VnodeTotals {
  double loss_sum = 0;  // nats
  int64_t counted_tokens = 0;
  int64_t correct = 0;
  double chosen_reward = 0, rejected_reward = 0;  // of preferences; else 0
};

// Of one step, or one round of an evaluation: which worker computes which vnode, and the records that came back.
//
// Threads: none of its own; the owner guards it.
class VnodeLedger {
 public:
  // One batch per vnode, by rising vnode. Nobody holds any yet. told: of what records have ExpertRows; an evaluation's of
  // nothing.
  VnodeLedger(StepId step, std::vector<VnodeBatch> batches, ToldExperts told = {});

  StepId step() const { return step_; }
  int64_t counted_tokens() const { return counted_tokens_; }  // of the whole step
  int64_t num_tokens() const { return num_tokens_; }          // of the same, counted or not, but no padding

  // Vnodes that nobody holds and somebody must compute, rising.
  std::vector<int> Unassigned() const;
  // Nobody has held any yet: every vnode is to be given out, and groups may carry them.
  bool IsFresh() const { return is_fresh_; }
  // Gives `vnodes` (unassigned ones) to `worker`, or to it as a member of `group`; returns what to send. A record that is
  // there, of somebody whose gradients are not, is forgotten: until `worker` gives its own it reads the step's weights.
  Assignment Assign(WorkerId worker, absl::Span<const int> vnodes, std::optional<GroupVnodes> group = std::nullopt);
  // `worker` is gone: those of its vnodes without a record, or with contributions missing (by
  // vnode; empty: none are), are unassigned again. Returns how many.
  int Lose(WorkerId worker, const std::vector<bool>& missing);
  // `group` is over: the same for the vnodes of all its members, each of whom held a part of what the others computed.
  int LoseGroup(uint64_t group, const std::vector<bool>& missing);
  bool Holds(WorkerId worker) const;
  // It holds vnodes, or held some in a group that is over.
  bool TakesPart(WorkerId worker) const;
  std::vector<int> VnodesOf(WorkerId worker) const;
  // `worker` holds a vnode whose record has not come.
  bool IsRunning(WorkerId worker) const;

  // Counts each record once. All are checked before the first is counted. A member of a group that is over meanwhile
  // may still say what it has computed: it is what anybody else will say, and counts until somebody is given the vnode.
  // Errors: INVALID_ARGUMENT naming the field: no such vnode, one that is not `worker`'s, other
  // counted_tokens, more correct ones than those, expert_rows that cannot be
  absl::Status AddRecords(WorkerId worker, absl::Span<const VnodeRecord> records);
  // Vnodes without a record, or with contributions missing (as in Lose), by who computes them; WorkerId() is nobody.
  std::map<WorkerId, std::vector<int>> Unfinished(const std::vector<bool>& missing) const;
  // vnodes[v]: those asked for; as above.
  std::map<WorkerId, std::vector<int>> HoldersOf(const std::vector<bool>& vnodes) const;
  // Vnodes that were lost and given out again, and whose record has come since: those since the last call.
  int TakeRedone() { return std::exchange(redone_, 0); }
  // Of the records, those that are in.
  double ShareOfRecords() const {
    return vnodes_.empty() ? 1 : static_cast<double>(records_in_) / static_cast<double>(vnodes_.size());
  }
  bool AllRecordsIn() const { return records_in_ == static_cast<int>(vnodes_.size()); }
  // The lowest vnode whose loss is not finite.
  std::optional<int> NonfiniteVnode() const;

  // These need AllRecordsIn().
  VnodeTotals Totals() const;
  double Loss() const;  // mean over the counted tokens; NaN where nothing is counted, and the gradient is 0
  std::vector<int64_t> TotalExpertRows() const;  // as ExpertRows, over all vnodes

 private:
  struct Entry {
    VnodeBatch batch;
    int64_t counted_tokens = 0;
    std::optional<WorkerId> holder;
    uint64_t group = 0;                            // that the holder computes it in; 0: none
    std::optional<WorkerId> holder_in_lost_group;  // who held it before
    bool was_lost = false;                         // and nobody has given its record since
    std::optional<VnodeRecord> record;
  };
  absl::Status Check(WorkerId worker, const VnodeRecord& record) const;
  // Nothing more is to come of the vnode.
  bool IsDone(size_t vnode, const std::vector<bool>& missing) const {
    return vnodes_[vnode].record.has_value() && (missing.empty() || !missing[vnode]);
  }

  StepId step_;
  ToldExperts told_;
  std::vector<Entry> vnodes_;
  int64_t counted_tokens_ = 0, num_tokens_ = 0;
  int records_in_ = 0;
  int redone_ = 0;
  bool is_fresh_ = true;
};

}  // namespace eps::server

#endif  // EPS_SERVER_STEP_VNODE_LEDGER_H_
