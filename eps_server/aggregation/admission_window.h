#ifndef EPS_SERVER_AGGREGATION_ADMISSION_WINDOW_H_
#define EPS_SERVER_AGGREGATION_ADMISSION_WINDOW_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "common/tensor/dtype.h"
#include "eps_server/aggregation/chunk_pool.h"
#include "eps_server/aggregation/contribution_key.h"
#include "eps_server/aggregation/step_coverage.h"

namespace eps::server {

// Bounds the memory of gradients in flight: says of each contribution that is offered when it may be sent.
//
// One that is admitted reserves those of its chunks that are missing then, as whole pages; a chunk that came is reserved
// no longer, and held by the pool instead, unless it is lent. Both together are what is used of window_bytes. What does not
// fit waits in line: the highest layer first, then by blob and by node, then in order of arrival. Only the front of the line
// is ever admitted: what would fit does not overtake what does not.
//
// The layer that backward completes next is admitted however full the window is, once no finished blob still waits for
// its update, so that a redo never starves: the window is exceeded by one layer's contributions at most.
//
// Knows keys of the step in progress alone, valid ones; whoever offers has checked them.
//
// Threads: none of its own; the owner guards it, and answers once it holds no lock.
class AdmissionWindow {
 public:
  using Answer = std::function<void(absl::StatusOr<Verdict>)>;
  // An offer that is in line no more: call answer(verdict).
  struct Answered {
    Answer answer;
    absl::StatusOr<Verdict> verdict;
  };

  struct Options {
    const ModelSpec* model = nullptr;  // outlives the window
    const ChunkPool* pool = nullptr;   // holds the chunks that came; outlives the window
    int virtual_nodes = 1;
    int64_t window_bytes = 0;
  };
  explicit AdmissionWindow(const Options& options);

  // Nothing is admitted any more, and what waits is not wanted: it was for an earlier step.
  std::vector<Answered> BeginStep();

  // Errors: RESOURCE_EXHAUSTED too many offers wait
  absl::Status CheckLine() const;
  // Puts an offer in line; Admit answers it. CheckLine was OK.
  void Wait(const ContributionKey& key, Answer answer);
  // Answers from the front of the line, as far as there is room, and those that `coverage` covers: they are not wanted.
  // Call whenever room may have been made, or `coverage` has more.
  // finished_blob_waits: a blob that is complete waits for its update, and its memory will be free without any
  // contribution.
  std::vector<Answered> Admit(const StepCoverage& coverage, bool finished_blob_waits);

  // Who was admitted with the key may still send.
  bool IsAdmitted(const ContributionKey& key) const { return open_.find(OpenKeyOf(key)) != open_.end(); }
  // `chunk` of the key needs no memory any more: it has some, or it came otherwise. Harmless if nothing is reserved.
  void GiveBack(const ContributionKey& key, int64_t chunk);
  // All of the key came, from whomever: what is still reserved is given back. Harmless if it is not admitted.
  void Close(const ContributionKey& key);
  // One sender of the key is gone. True if it was the last one, and what is still reserved is given back.
  bool Abandon(const ContributionKey& key);

  // Answers all that wait with `reason`.
  std::vector<Answered> Refuse(const absl::Status& reason);

  int64_t window_bytes() const { return window_bytes_; }                         // the limit
  int64_t used_bytes() const { return reserved_bytes_ + pool_.held_bytes(); }    // reserved, and held
  int64_t num_waiting() const { return static_cast<int64_t>(waiting_.size()); }  // offers

 private:
  struct OpenKey {
    BlobId blob;
    int use;
    TreeNode node;
    ChunkRange chunks;
    Dtype dtype;
    friend auto operator<=>(const OpenKey&, const OpenKey&) = default;
  };
  // An admitted contribution that is not complete.
  struct Open {
    int senders = 0;             // admissions of the very same part of the very same node
    std::vector<bool> reserved;  // by chunk, from the first of the part on
    int64_t reserved_bytes = 0;
  };
  using OpenMap = std::map<OpenKey, Open>;
  struct Waiting {
    ContributionKey key;
    Answer answer;
  };
  // The highest layer first, then by blob and node; the number keeps equal ones apart, in order of arrival.
  using Place = std::tuple<int, BlobId, int, int, int64_t>;

  static OpenKey OpenKeyOf(const ContributionKey& key) { return {key.blob, key.use, key.node, key.chunks, key.dtype}; }
  LayerId LayerOf(const ContributionKey& key) const { return model_.blob(key.blob).uses[key.use]; }
  int64_t CostBytes(const ContributionKey& key, int64_t chunk) const;
  bool Reserve(const ContributionKey& key, const StepCoverage& coverage, bool finished_blob_waits);
  void Erase(OpenMap::iterator open);
  std::vector<Answered> AnswerAll(const absl::StatusOr<Verdict>& verdict);

  // Fixed after construction.
  const ModelSpec& model_;
  const ChunkPool& pool_;
  const int64_t window_bytes_;
  int64_t max_waiting_ = 0;

  OpenMap open_;
  int64_t reserved_bytes_ = 0;  // by all that is open
  std::map<Place, Waiting> waiting_;
  int64_t next_offer_ = 0;
};

}  // namespace eps::server

#endif  // EPS_SERVER_AGGREGATION_ADMISSION_WINDOW_H_
