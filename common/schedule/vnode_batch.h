#ifndef EPS_COMMON_SCHEDULE_VNODE_BATCH_H_
#define EPS_COMMON_SCHEDULE_VNODE_BATCH_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/schedule/expert_rows.h"

namespace eps {

inline constexpr int32_t kNotCounted = -100;  // as a label: no loss is taken of it

// What one virtual node computes in one step. Shape of all arrays but a classifier's labels: (micro_batches, micro_batch,
// context), row-major.
struct VnodeBatch {
  int vnode = 0;
  std::vector<int32_t> tokens;
  std::vector<int32_t> labels;  // -100: not counted; (micro_batches, micro_batch) classes of a classifier
  // Of a model that has types of tokens; empty: all are 0.
  std::vector<int32_t> types;
  // The index, within its sample, of the first token of each token's document, which ends where the next one begins or
  // the sample ends. Empty where a sample is one document: DataConfig::has_documents.
  std::vector<int32_t> document_first;
  // Of the tokens, those that only fill up samples. Known to the daemon alone.
  int64_t num_padding = 0;
  // Of a run on preferences: how many pairs of sequences, 2i and 2i + 1, are counted. Known to the daemon alone.
  int64_t num_pairs = 0;
};

// One behind the last token of each token's document, of arrays as document_first: `context` tokens a sample.
// Errors: INVALID_ARGUMENT the index, its value, and what is wrong: it neither begins a document nor goes on with one
absl::StatusOr<std::vector<int32_t>> DocumentEnds(absl::Span<const int32_t> document_first, int64_t context);

// A group of workers in one step: what each member computes. The same in all members, but for `rank`.
struct GroupVnodes {
  uint64_t group = 0;                    // its id; never 0
  int rank = 0;                          // of this worker
  std::vector<std::vector<int>> vnodes;  // by rank, each rising; together disjoint

  int size() const { return static_cast<int>(vnodes.size()); }
  friend auto operator<=>(const GroupVnodes&, const GroupVnodes&) = default;
};

// What one worker is to do for a step: all of its vnodes, or, after another worker was lost, those that
// came on top (then the step is one that the worker may already have run with other vnodes).
struct Assignment {
  StepId step;
  // Of the whole step, over all vnodes: the loss is the mean over them. Samples of a classifier, pairs of preferences.
  int64_t counted_tokens = 0;
  std::vector<VnodeBatch> vnodes;  // rising by vnode
  double loss_scale = 1;           // of the step: gradients come multiplied by it
  // Blocks that the step leaves out, rising: LayerDrop's. None of an evaluation.
  std::vector<LayerId> dropped = {};
  // With whom it pulls and pushes; none: alone. Then `vnodes` are those of its rank.
  std::optional<GroupVnodes> group = std::nullopt;
  // Of an evaluation: `vnodes` go forward alone, without dropout, with version `step`, and nothing is pushed;
  // counted_tokens is the round's. Never in a group.
  std::optional<int64_t> evaluation_round = std::nullopt;
};

// What one vnode adds to its step, beside gradients.
struct VnodeRecord {
  int vnode = 0;
  double loss_sum = 0;  // nats, over the vnode's counted tokens; samples or pairs, as Assignment's
  int64_t counted_tokens = 0;
  bool finite = true;  // the loss; gradients say it with each contribution
  // Of the counted tokens: those whose logit is the first of the largest. Of pairs: whose better answer is preferred.
  int64_t correct = 0;
  // Of pairs: what the rewards of better answers add up to, and of the others (PreferenceConfig); else 0.
  double chosen_reward = 0, rejected_reward = 0;
  ExpertRows expert_rows;  // of all its tokens, of what is told; none of an evaluation
};

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_VNODE_BATCH_H_
