#include "eps_server/aggregation/aggregator.h"

#include <string.h>

#include <algorithm>
#include <compare>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/schedule/chunk_range.h"
#include "eps_server/aggregation/chunk_pool.h"
#include "eps_server/aggregation/coverage.h"
#include "eps_server/aggregation/window_size.h"

namespace eps::server {
namespace {

using Answer = std::function<void(absl::StatusOr<Verdict>)>;

// The contributions of one chunk, while the consumer has them. Tells the aggregator when they are
// gone.
struct ConsumedChunk {
  std::vector<HeldContribution> held;
  std::function<void()> released;

  ConsumedChunk() = default;
  ConsumedChunk(const ConsumedChunk&) = delete;
  ~ConsumedChunk() {
    held.clear();  // first: the window has room when `released` looks
    if (released) released();
  }
};

class AggregatorImpl final : public Aggregator {
 public:
  explicit AggregatorImpl(Options options)
      : model_(*options.model),
        num_vnodes_(options.virtual_nodes),
        gradients_(options.gradients),
        window_bytes_(options.window_bytes),
        consume_(std::move(options.consume)),
        on_step_in_(std::move(options.on_step_in)),
        pool_(ChunkPool::Create(options.window_bytes)) {
    for (const BlobSpec& blob : model_.blobs) {
      if (blob.frozen) continue;
      for (size_t use = 0; use < blob.uses.size(); ++use) {
        backward_order_.push_back({blob.id, static_cast<int>(use)});
      }
    }
    std::stable_sort(backward_order_.begin(), backward_order_.end(),
                     [this](Use a, Use b) { return Position(a) > Position(b); });
    // A few times every vnode of every use, in parts of one chunk.
    int64_t parts = 0;
    for (const Use& use : backward_order_) parts += model_.blob(use.blob).num_chunks();
    max_waiting_ = std::min<int64_t>(1 << 20, 1024 + int64_t{4} * num_vnodes_ * parts);
  }

  void BeginStep(StepId step, const std::vector<bool>& dropped) override {
    Calls calls;
    MutexLock lock(mu_);
    EPS_CHECK(step > step_ && chunks_left_ == 0);
    EPS_CHECK(dropped.empty() || dropped.size() == model_.blobs.size());
    step_ = step;
    front_ = 0;
    reserved_bytes_ = 0;
    open_.clear();
    // What the consumer still has belongs to finished blobs: at_consumer counts anew.
    blobs_.clear();
    for (const BlobSpec& spec : model_.blobs) {
      BlobSlot& blob = blobs_.emplace_back();
      blob.dropped = !dropped.empty() && dropped[static_cast<size_t>(spec.id.value())];
      if (spec.frozen || blob.dropped) continue;
      chunks_left_ += spec.num_chunks();
      blob.uses.resize(spec.uses.size());
      for (UseSlot& use : blob.uses) use.chunks.resize(static_cast<size_t>(spec.num_chunks()));
    }
    EPS_CHECK(chunks_left_ > 0);
    handing_ = chunks_left_;
    // Whatever waited was for an earlier step.
    for (auto& [place, waiting] : waiting_) calls.Add(std::move(waiting.answer), Verdict::kNotWanted);
    waiting_.clear();
  }

  void Offer(const ContributionKey& key, Answer answer) override {
    Calls calls;
    MutexLock lock(mu_);
    if (absl::Status status = stopped_.ok() ? Check(key) : stopped_; !status.ok()) {
      return calls.Add(std::move(answer), status);
    }
    if (key.step < step_ || IsCovered(key)) return calls.Add(std::move(answer), Verdict::kNotWanted);
    if (static_cast<int64_t>(waiting_.size()) >= max_waiting_) {
      return calls.Add(std::move(answer), absl::ResourceExhaustedError(
                                              absl::StrCat(waiting_.size(), " offers wait for the window already")));
    }
    waiting_.emplace(PlaceInQueue(key), Waiting{key, std::move(answer)});
    Pump(calls);
  }

  absl::StatusOr<ChunkOutcome> AddChunk(const ContributionKey& key, int64_t chunk, int64_t payload_bytes,
                                        const Fill& fill) override {
    Calls calls;
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(stopped_);
      EPS_RETURN_IF_ERROR(Check(key));
      EPS_RETURN_IF_ERROR(CheckChunk(key, chunk, payload_bytes));
      if (!IsWanted(key, chunk)) return Drop(key, chunk, calls);
      if (open_.find(OpenKeyOf(key)) == open_.end()) {
        return absl::FailedPreconditionError(absl::StrCat(DebugString(key), ": chunk ", chunk, " was not admitted"));
      }
    }
    EPS_ASSIGN_OR_RETURN(ChunkBuffer buffer, pool_->Take(payload_bytes));
    EPS_RETURN_IF_ERROR(fill(absl::MakeSpan(buffer.data(), static_cast<size_t>(payload_bytes))));

    ChunkOutcome outcome;
    std::optional<ChunkGradient> ready;
    {
      MutexLock lock(mu_);
      // The same one may have come from another worker meanwhile.
      if (!IsWanted(key, chunk)) return Drop(key, chunk, calls);
      Count(key, chunk, std::move(buffer));
      ready = ConsumeIfWhole(key.blob, chunk);
      outcome = {.counted = true, .complete = CloseIfComplete(key)};
      Pump(calls);
    }
    if (ready.has_value()) {
      consume_(key.step, key.blob, chunk, *std::move(ready));
      if (FinishHanding()) on_step_in_(key.step);
    }
    return outcome;
  }

  void Abandon(const ContributionKey& key) override {
    Calls calls;
    MutexLock lock(mu_);
    const auto found = open_.find(OpenKeyOf(key));
    if (key.step != step_ || found == open_.end() || --found->second.senders > 0) return;
    Close(found);
    Pump(calls);
  }

  std::vector<bool> MissingVnodes() const override {
    std::vector<bool> missing(static_cast<size_t>(num_vnodes_), false);
    MutexLock lock(mu_);
    for (const BlobSlot& blob : blobs_) {
      for (const UseSlot& use : blob.uses) {
        for (const Coverage& chunk : use.chunks) {
          if (chunk.IsWhole(num_vnodes_)) continue;
          for (int v = 0; v < num_vnodes_; ++v) {
            if (!missing[v] && !chunk.Covers(v)) missing[v] = true;
          }
        }
      }
    }
    return missing;
  }

  std::vector<BlobId> MissingBlobs() const override {
    std::vector<BlobId> missing;
    MutexLock lock(mu_);
    for (size_t b = 0; b < blobs_.size(); ++b) {
      const BlobSpec& blob = model_.blobs[b];
      if (blob.frozen || blobs_[b].dropped) continue;
      if (blobs_[b].consumed_chunks < blob.num_chunks()) missing.push_back(blob.id);
    }
    return missing;
  }

  int64_t window_bytes() const override { return window_bytes_; }
  int64_t window_used_bytes() const override {
    MutexLock lock(mu_);
    return UsedBytes();
  }
  int64_t waiting_offers() const override {
    MutexLock lock(mu_);
    return static_cast<int64_t>(waiting_.size());
  }

  void Stop(absl::Status reason) override {
    Calls calls;
    MutexLock lock(mu_);
    if (!stopped_.ok()) return;  // the first reason is the cause
    stopped_ = reason;
    for (auto& [place, waiting] : waiting_) calls.Add(std::move(waiting.answer), reason);
    waiting_.clear();
  }

 private:
  struct Use {
    BlobId blob;
    int use;
  };
  struct UseSlot {
    std::vector<Coverage> chunks;
    int64_t whole_chunks = 0;
  };
  struct BlobSlot {
    std::vector<UseSlot> uses;
    int64_t consumed_chunks = 0;
    int64_t at_consumer = 0;  // chunks of this step whose memory the consumer still has
    bool dropped = false;     // by this step: it has no uses
  };
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
  struct Waiting {
    ContributionKey key;
    Answer answer;
  };
  // The highest layer first, then by node; the number keeps equal ones apart, in order of arrival.
  using QueuePlace = std::tuple<int, BlobId, int, int, int64_t>;

  // Answers to give once the lock is released: declare before the lock. An answer may bring about further ones, as that of
  // a sender who is gone by now, who abandons it: they are given behind those that are under way, not from within them.
  class Calls {
   public:
    Calls() = default;
    Calls(const Calls&) = delete;
    ~Calls() {
      static thread_local std::deque<Call>* under_way = nullptr;  // by the outermost one of this thread
      if (under_way != nullptr) {
        std::move(calls_.begin(), calls_.end(), std::back_inserter(*under_way));
        return;
      }
      under_way = &calls_;
      for (; !calls_.empty(); calls_.pop_front()) {
        auto& [answer, verdict] = calls_.front();
        answer(std::move(verdict));
      }
      under_way = nullptr;
    }
    void Add(Answer answer, absl::StatusOr<Verdict> verdict) {
      calls_.emplace_back(std::move(answer), std::move(verdict));
    }

   private:
    using Call = std::pair<Answer, absl::StatusOr<Verdict>>;
    std::deque<Call> calls_;
  };

  int Position(Use use) const { return model_.blob(use.blob).uses[use.use].value(); }
  static OpenKey OpenKeyOf(const ContributionKey& key) { return {key.blob, key.use, key.node, key.chunks, key.dtype}; }
  UseSlot& SlotOf(const ContributionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return blobs_[key.blob.value()].uses[key.use];
  }
  int64_t ChunkBytes(const ContributionKey& key, int64_t chunk) const {
    return model_.blob(key.blob).chunk_elems(chunk) * SizeOf(key.dtype);
  }
  int64_t ReservedBytes(const ContributionKey& key, int64_t chunk) const {
    return ChunkPool::CostBytes(ChunkBytes(key, chunk));
  }
  QueuePlace PlaceInQueue(const ContributionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return {-Position({key.blob, key.use}), key.blob, key.node.first, key.node.count, next_offer_++};
  }

  absl::Status Check(const ContributionKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckChunk(const ContributionKey& key, int64_t chunk, int64_t payload_bytes) const;

  int64_t UsedBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reserved_bytes_ + pool_->held_bytes(); }

  // Answers offers from the front of the queue, as far as the window has room.
  void Pump(Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    AdvanceFront();
    while (!waiting_.empty()) {
      const auto first = waiting_.begin();
      const ContributionKey key = first->second.key;
      const bool wanted = !IsCovered(key);
      if (wanted && !Admit(key)) return;
      calls.Add(std::move(first->second.answer), wanted ? Verdict::kAdmitted : Verdict::kNotWanted);
      waiting_.erase(first);
    }
  }

  // Moves to the first use, in backward order, that is not whole.
  void AdvanceFront() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (front_ < backward_order_.size() && !blobs_.empty()) {
      const Use use = backward_order_[front_];
      const bool dropped = blobs_[use.blob.value()].dropped;
      if (!dropped && blobs_[use.blob.value()].uses[use.use].whole_chunks < model_.blob(use.blob).num_chunks()) return;
      ++front_;
    }
  }

  // What there is of the key's use, of the key's chunks alone.
  absl::Span<const Coverage> CoverageOf(const ContributionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return absl::MakeConstSpan(SlotOf(key).chunks)
        .subspan(static_cast<size_t>(key.chunks.first), static_cast<size_t>(key.chunks.count));
  }

  bool IsCovered(const ContributionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const absl::Span<const Coverage> chunks = CoverageOf(key);
    return std::all_of(chunks.begin(), chunks.end(), [&](const Coverage& chunk) { return chunk.Covers(key.node); });
  }

  bool Admit(const ContributionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = open_.find(OpenKeyOf(key));
    if (found != open_.end()) {  // who comes first with a chunk fills the one reservation
      ++found->second.senders;
      return true;
    }
    Open open;
    open.senders = 1;
    const absl::Span<const Coverage> chunks = CoverageOf(key);
    open.reserved.resize(chunks.size());
    for (size_t i = 0; i < chunks.size(); ++i) {
      open.reserved[i] = !chunks[i].Covers(key.node);
      if (open.reserved[i]) open.reserved_bytes += ReservedBytes(key, key.chunks.first + static_cast<int64_t>(i));
    }
    if (UsedBytes() + open.reserved_bytes > window_bytes_ && !GoesFirst(key)) return false;
    reserved_bytes_ += open.reserved_bytes;
    open_.emplace(OpenKeyOf(key), std::move(open));
    return true;
  }

  // The layer that backward completes next is never kept waiting by those behind it. A finished
  // blob that still waits for its update needs no contribution to go on, so waiting for it cannot
  // starve anybody, and bounds the window.
  bool GoesFirst(const ContributionKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return front_ < backward_order_.size() && finished_at_consumer_ == 0 &&
           Position({key.blob, key.use}) >= Position(backward_order_[front_]);
  }

  void Unreserve(const ContributionKey& key, int64_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto found = open_.find(OpenKeyOf(key));
    if (found == open_.end()) return;
    const size_t place = static_cast<size_t>(chunk - key.chunks.first);
    if (!found->second.reserved[place]) return;
    const int64_t num_bytes = ReservedBytes(key, chunk);
    found->second.reserved[place] = false;
    found->second.reserved_bytes -= num_bytes;
    reserved_bytes_ -= num_bytes;
  }

  void Close(std::map<OpenKey, Open>::iterator open) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    reserved_bytes_ -= open->second.reserved_bytes;
    open_.erase(open);
  }

  bool CloseIfComplete(const ContributionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!IsCovered(key)) return false;
    const auto found = open_.find(OpenKeyOf(key));
    if (found != open_.end()) Close(found);
    return true;
  }

  bool IsWanted(const ContributionKey& key, int64_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return key.step == step_ && !SlotOf(key).chunks[chunk].Covers(key.node);
  }

  ChunkOutcome Drop(const ContributionKey& key, int64_t chunk, Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (key.step < step_) return {.counted = false, .complete = true};
    Unreserve(key, chunk);
    const bool complete = CloseIfComplete(key);
    Pump(calls);
    return {.counted = false, .complete = complete};
  }

  void Count(const ContributionKey& key, int64_t chunk, ChunkBuffer buffer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    Unreserve(key, chunk);
    UseSlot& use = SlotOf(key);
    use.chunks[chunk].Add({key.node, key.dtype, key.nonfinite_vnode, std::move(buffer)});
    if (use.chunks[chunk].IsWhole(num_vnodes_)) ++use.whole_chunks;
  }

  std::optional<ChunkGradient> ConsumeIfWhole(BlobId id, int64_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BlobSlot& blob = blobs_[id.value()];
    for (const UseSlot& use : blob.uses) {
      if (!use.chunks[chunk].IsWhole(num_vnodes_)) return std::nullopt;
    }
    auto consumed = std::make_shared<ConsumedChunk>();
    ChunkGradient gradient;
    for (size_t use = 0; use < blob.uses.size(); ++use) {
      AppendUse(blob.uses[use].chunks[chunk].Consume(), static_cast<int>(use), gradient, *consumed);
    }
    consumed->released = [this, step = step_, id] { OnReleased(step, id); };
    gradient.owner = std::move(consumed);
    ++blob.at_consumer;
    if (++blob.consumed_chunks == model_.blob(id).num_chunks()) finished_at_consumer_ += blob.at_consumer;
    --chunks_left_;
    return gradient;
  }

  void AppendUse(std::vector<HeldContribution> held, int use, ChunkGradient& gradient, ConsumedChunk& consumed) const {
    std::vector<TreeNode> nodes;
    const int first_operand = static_cast<int>(gradient.operands.size());
    for (HeldContribution& contribution : held) {
      nodes.push_back(contribution.node);
      gradient.operands.push_back({contribution.dtype, contribution.buffer.data(), contribution.node, use});
      const int vnode = contribution.nonfinite_vnode;
      if (vnode >= 0 && (gradient.nonfinite_vnode < 0 || vnode < gradient.nonfinite_vnode)) {
        gradient.nonfinite_vnode = vnode;
      }
      consumed.held.push_back(std::move(contribution));
    }
    for (SumOp op : SumProgram(nodes, num_vnodes_)) {
      if (op.kind == SumOp::Kind::kLoad) op.operand += first_operand;
      gradient.program.push_back(op);
    }
    if (use > 0) gradient.program.push_back({SumOp::Kind::kAdd, 0});
  }

  // True for the last chunk of the step that was handed over.
  bool FinishHanding() {
    MutexLock lock(mu_);
    return --handing_ == 0;
  }

  void OnReleased(StepId step, BlobId id) {
    Calls calls;
    MutexLock lock(mu_);
    BlobSlot& blob = blobs_[id.value()];
    const bool finished = step < step_ || blob.consumed_chunks == model_.blob(id).num_chunks();
    if (finished) --finished_at_consumer_;
    if (step == step_) --blob.at_consumer;
    Pump(calls);
  }

  // Fixed after construction.
  const ModelSpec& model_;
  const int num_vnodes_;
  const Dtype gradients_;
  const int64_t window_bytes_;
  const std::function<void(StepId, BlobId, int64_t, ChunkGradient)> consume_;
  const std::function<void(StepId)> on_step_in_;
  const std::shared_ptr<ChunkPool> pool_;
  std::vector<Use> backward_order_;  // the highest layer first
  int64_t max_waiting_ = 0;

  // Guarded by mu_. No ChunkGradient is destroyed under it: that calls back.
  mutable Mutex mu_;
  StepId step_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  std::vector<BlobSlot> blobs_ ABSL_GUARDED_BY(mu_);  // of step_; empty before the first
  int64_t chunks_left_ ABSL_GUARDED_BY(mu_) = 0;      // not whole yet
  int64_t handing_ ABSL_GUARDED_BY(mu_) = 0;          // not given to `consume` yet
  size_t front_ ABSL_GUARDED_BY(mu_) = 0;             // index into backward_order_
  std::map<OpenKey, Open> open_ ABSL_GUARDED_BY(mu_);
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Chunks of finished blobs whose memory is still in use.
  int64_t finished_at_consumer_ ABSL_GUARDED_BY(mu_) = 0;
  std::map<QueuePlace, Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  int64_t next_offer_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status stopped_ ABSL_GUARDED_BY(mu_);
};

absl::Status AggregatorImpl::Check(const ContributionKey& key) const {
  const auto error = [](auto... parts) { return absl::InvalidArgumentError(absl::StrCat(parts...)); };
  if (key.blob.value() < 0 || static_cast<size_t>(key.blob.value()) >= model_.blobs.size()) {
    return error("blob: ", key.blob.value(), ", the model has ", model_.blobs.size());
  }
  const BlobSpec& blob = model_.blob(key.blob);
  if (blob.frozen) return error("blob: ", key.blob.value(), " (", blob.name, ") is frozen, it takes no gradients");
  if (key.use < 0 || static_cast<size_t>(key.use) >= blob.uses.size()) {
    return error("use: ", key.use, ", blob ", key.blob.value(), " (", blob.name, ") has ", blob.uses.size());
  }
  if (!IsTreeNode(key.node, num_vnodes_)) {
    return error("node: first ", key.node.first, ", count ", key.node.count, ", is no node of the reduction tree over ",
                 num_vnodes_, " virtual nodes");
  }
  if (!IsDtype(static_cast<int>(key.dtype))) {
    return error("dtype: ", static_cast<int>(key.dtype), ", must be ", kDtypeValues);
  }
  // A virtual node's gradient is rounded once, by who computed it, or not at all: the bits of the sum depend on it.
  if (const Dtype wanted = key.node.is_leaf() ? gradients_ : Dtype::kF32; key.dtype != wanted) {
    return error("dtype: ", DtypeName(key.dtype), " for node ", DebugString(key.node), ", must be ", DtypeName(wanted),
                 ": sums are F32, single virtual nodes as precision.gradients says");
  }
  // Not node.Contains: the end of a node that starts at the largest int overflows.
  const bool in_node = key.nonfinite_vnode >= key.node.first && key.nonfinite_vnode < key.node.end();
  if (key.nonfinite_vnode != -1 && !in_node) {
    return error("nonfinite_vnode: ", key.nonfinite_vnode, " is not in node ", DebugString(key.node));
  }
  EPS_RETURN_IF_ERROR(CheckChunks(blob, key.chunks));
  if (key.step.value() < 0 || key.step > step_) {
    return error("step: ", key.step.value(), ", the step in progress is ", step_.value());
  }
  if (key.step == step_ && blobs_[key.blob.value()].dropped) {
    return error("blob: ", key.blob.value(), " (", blob.name, ") is dropped by step ", step_.value(),
                 " (depth.drop), it takes no gradients");
  }
  return absl::OkStatus();
}

absl::Status AggregatorImpl::CheckChunk(const ContributionKey& key, int64_t chunk, int64_t payload_bytes) const {
  if (!key.chunks.Contains(chunk)) {
    return absl::InvalidArgumentError(absl::StrCat("chunk: ", chunk, ", the contribution to blob ", key.blob.value(),
                                                   " has ", DebugString(key.chunks)));
  }
  const int64_t wanted = ChunkBytes(key, chunk);
  if (payload_bytes != wanted) {
    return absl::InvalidArgumentError(absl::StrCat("payload_bytes: ", payload_bytes, ", chunk ", chunk, " of blob ",
                                                   key.blob.value(), " in ", DtypeName(key.dtype), " has ", wanted));
  }
  return absl::OkStatus();
}

}  // namespace

std::string DebugString(const ContributionKey& key) {
  return absl::StrCat("step ", key.step.value(), ", blob ", key.blob.value(), ", use ", key.use, ", node ",
                      DebugString(key.node), ", ", DebugString(key.chunks));
}

absl::StatusOr<ChunkOutcome> Aggregator::AddChunk(const ContributionKey& key, int64_t chunk,
                                                  absl::Span<const std::byte> payload) {
  return AddChunk(key, chunk, static_cast<int64_t>(payload.size()), [payload](absl::Span<std::byte> to) {
    memcpy(to.data(), payload.data(), payload.size());
    return absl::OkStatus();
  });
}

absl::StatusOr<std::unique_ptr<Aggregator>> Aggregator::Create(Options options) {
  if (options.window_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("window_bytes: ", options.window_bytes, ", must be at least 0"));
  }
  EPS_CHECK(options.model != nullptr && options.virtual_nodes >= 1 && options.consume && options.on_step_in);
  if (options.window_bytes == 0) options.window_bytes = DefaultWindowBytes(*options.model);
  return std::make_unique<AggregatorImpl>(std::move(options));
}

}  // namespace eps::server
