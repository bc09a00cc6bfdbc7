#include "eps_server/aggregation/aggregator.h"

#include <string.h>

#include <algorithm>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/schedule/chunk_range.h"
#include "common/schedule/reduction_tree.h"
#include "eps_server/aggregation/admission_window.h"
#include "eps_server/aggregation/chunk_pool.h"
#include "eps_server/aggregation/contribution_key.h"
#include "eps_server/aggregation/coverage.h"
#include "eps_server/aggregation/step_coverage.h"
#include "eps_server/aggregation/window_size.h"

namespace eps::server {
namespace {

using Answer = AdmissionWindow::Answer;
using Answered = AdmissionWindow::Answered;

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
        consume_(std::move(options.consume)),
        show_later_uses_(std::move(options.show_later_uses)),
        on_step_in_(std::move(options.on_step_in)),
        window_bytes_(options.window_bytes),
        pool_(ChunkPool::Create(options.window_bytes)),
        coverage_(&model_, num_vnodes_),
        window_({.model = &model_,
                 .pool = pool_.get(),
                 .virtual_nodes = num_vnodes_,
                 .window_bytes = options.window_bytes}) {}

  void BeginStep(StepId step, const std::vector<bool>& dropped) override {
    Calls calls;
    MutexLock lock(mu_);
    EPS_CHECK(step > step_ && coverage_.missing_chunks() == 0);
    EPS_CHECK(dropped.empty() || dropped.size() == model_.blobs.size());
    step_ = step;
    coverage_.Begin(dropped);
    EPS_CHECK(coverage_.missing_chunks() > 0);
    handing_ = coverage_.missing_chunks();
    // What the consumer still has belongs to finished blobs.
    at_consumer_.assign(model_.blobs.size(), 0);
    calls.Add(window_.BeginStep());
  }

  void Offer(const ContributionKey& key, Answer answer) override {
    Calls calls;
    MutexLock lock(mu_);
    if (absl::Status status = stopped_.ok() ? Check(key) : stopped_; !status.ok()) {
      return calls.Add(std::move(answer), status);
    }
    if (key.step < step_ || coverage_.Covers(key)) return calls.Add(std::move(answer), Verdict::kNotWanted);
    if (absl::Status full = window_.CheckLine(); !full.ok()) return calls.Add(std::move(answer), full);
    window_.Wait(key, std::move(answer));
    Pump(calls);
  }

  absl::StatusOr<ChunkOutcome> AddChunk(const ContributionKey& key, int64_t chunk, Payload payload) override {
    Calls calls;
    std::optional<Added> added;
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(stopped_);
      EPS_RETURN_IF_ERROR(Check(key));
      EPS_RETURN_IF_ERROR(CheckChunk(key, chunk, payload.num_bytes));
      if (!IsWanted(key, chunk)) return Drop(key, chunk, calls);
      if (!window_.IsAdmitted(key)) {
        return absl::FailedPreconditionError(absl::StrCat(DebugString(key), ": chunk ", chunk, " was not admitted"));
      }
      if (payload.lent != nullptr && coverage_.IsWholeWith(key, chunk)) {
        added = Add(key, chunk, ChunkBuffer::Lent(std::move(payload.lent)), calls);
      }
    }
    if (!added.has_value()) {
      EPS_ASSIGN_OR_RETURN(ChunkBuffer buffer, pool_->Take(payload.num_bytes));
      EPS_RETURN_IF_ERROR(payload.copy(absl::MakeSpan(buffer.writable_data(), static_cast<size_t>(payload.num_bytes))));
      MutexLock lock(mu_);
      // The same one may have come from another worker meanwhile.
      if (!IsWanted(key, chunk)) return Drop(key, chunk, calls);
      added = Add(key, chunk, std::move(buffer), calls);
    }
    if (added->later_uses.has_value()) {
      show_later_uses_(key.step, key.blob, chunk, *std::move(added->later_uses));
    }
    if (added->whole.has_value()) {
      consume_(key.step, key.blob, chunk, *std::move(added->whole));
      if (FinishHanding()) on_step_in_(key.step);
    }
    return added->outcome;
  }

  void Abandon(const ContributionKey& key) override {
    Calls calls;
    MutexLock lock(mu_);
    if (key.step != step_ || !window_.Abandon(key)) return;
    Pump(calls);
  }

  bool AllIn() const override {
    MutexLock lock(mu_);
    return coverage_.missing_chunks() == 0;
  }
  std::vector<bool> MissingVnodes() const override {
    MutexLock lock(mu_);
    return coverage_.MissingVnodes();
  }
  std::vector<bool> VnodesMissingNext() const override {
    MutexLock lock(mu_);
    return coverage_.VnodesMissingNext();
  }
  std::vector<BlobId> MissingBlobs() const override {
    MutexLock lock(mu_);
    return coverage_.MissingBlobs();
  }

  int64_t window_bytes() const override { return window_bytes_; }
  int64_t window_used_bytes() const override {
    MutexLock lock(mu_);
    return window_.used_bytes();
  }
  bool waits_for_updates() const override {
    MutexLock lock(mu_);
    return window_.num_waiting() > 0 && finished_at_consumer_ > 0;
  }
  int64_t waiting_offers() const override {
    MutexLock lock(mu_);
    return window_.num_waiting();
  }

  void Stop(absl::Status reason) override {
    Calls calls;
    MutexLock lock(mu_);
    if (!stopped_.ok()) return;  // the first reason is the cause
    stopped_ = reason;
    calls.Add(window_.Refuse(reason));
  }

 private:
  // Answers to give once the lock is released: declare before the lock. An answer may bring about further ones, as that
  // of a sender who is gone by now, who abandons it: they are given behind those that are under way, not from within
  // them.
  class Calls {
   public:
    Calls() = default;
    Calls(const Calls&) = delete;
    ~Calls() {
      static thread_local std::deque<Answered>* under_way = nullptr;  // by the outermost one of this thread
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
      calls_.push_back({std::move(answer), std::move(verdict)});
    }
    void Add(std::vector<Answered> answered) {
      std::move(answered.begin(), answered.end(), std::back_inserter(calls_));
    }

   private:
    std::deque<Answered> calls_;
  };

  // A chunk that counts, and what it makes complete.
  struct Added {
    ChunkOutcome outcome;
    std::optional<ChunkGradient> whole, later_uses;
  };
  Added Add(const ContributionKey& key, int64_t chunk, ChunkBuffer buffer, Calls& calls)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    window_.GiveBack(key, chunk);
    coverage_.Add(key, chunk, std::move(buffer));
    Added added;
    added.whole = ConsumeIfWhole(key.blob, chunk);
    if (key.use > 0) added.later_uses = LaterUses(key.blob, chunk);
    added.outcome = {.counted = true, .complete = CloseIfComplete(key)};
    Pump(calls);
    return added;
  }

  int64_t ChunkBytes(const ContributionKey& key, int64_t chunk) const {
    return model_.blob(key.blob).chunk_elems(chunk) * SizeOf(key.dtype);
  }
  absl::Status Check(const ContributionKey& key) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckChunk(const ContributionKey& key, int64_t chunk, int64_t payload_bytes) const;

  // Answers offers, as far as the window has room.
  void Pump(Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    calls.Add(window_.Admit(coverage_, /*finished_blob_waits=*/finished_at_consumer_ > 0));
  }

  bool CloseIfComplete(const ContributionKey& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!coverage_.Covers(key)) return false;
    window_.Close(key);
    return true;
  }

  bool IsWanted(const ContributionKey& key, int64_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return key.step == step_ && !coverage_.Covers(key, chunk);
  }

  ChunkOutcome Drop(const ContributionKey& key, int64_t chunk, Calls& calls) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (key.step < step_) return {.counted = false, .complete = true};
    window_.GiveBack(key, chunk);
    const bool complete = CloseIfComplete(key);
    Pump(calls);
    return {.counted = false, .complete = complete};
  }

  std::optional<ChunkGradient> ConsumeIfWhole(BlobId id, int64_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!coverage_.IsWhole(id, chunk)) return std::nullopt;
    auto consumed = std::make_shared<ConsumedChunk>();
    ChunkGradient gradient;
    for (int use = 0; use < coverage_.num_uses(id); ++use) {
      AppendUse(coverage_.Held(id, use, chunk), use, gradient);
      for (HeldContribution& held : coverage_.Consume(id, use, chunk)) consumed->held.push_back(std::move(held));
    }
    consumed->released = [this, step = step_, id] { OnReleased(step, id); };
    gradient.owner = std::move(consumed);
    const int64_t at_consumer = ++at_consumer_[static_cast<size_t>(id.value())];
    if (coverage_.IsWhole(id)) finished_at_consumer_ += at_consumer;
    return gradient;
  }

  // Once: with the contribution that completes the others.
  std::optional<ChunkGradient> LaterUses(BlobId id, int64_t chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (show_later_uses_ == nullptr || !coverage_.HasAllButFirstUse(id, chunk)) return std::nullopt;
    ChunkGradient gradient;
    for (int use = 1; use < coverage_.num_uses(id); ++use) AppendUse(coverage_.Held(id, use, chunk), use, gradient);
    return gradient;
  }

  void AppendUse(const std::vector<HeldContribution>& held, int use, ChunkGradient& gradient) const {
    std::vector<TreeNode> nodes;
    const int first_operand = static_cast<int>(gradient.operands.size());
    for (const HeldContribution& contribution : held) {
      nodes.push_back(contribution.node);
      gradient.operands.push_back({contribution.dtype, contribution.buffer.data(), contribution.node, use});
      const int vnode = contribution.nonfinite_vnode;
      if (vnode >= 0 && (gradient.nonfinite_vnode < 0 || vnode < gradient.nonfinite_vnode)) {
        gradient.nonfinite_vnode = vnode;
      }
    }
    for (SumOp op : SumProgram(nodes, num_vnodes_)) {
      if (op.kind == SumOp::Kind::kLoad) op.operand += first_operand;
      gradient.program.push_back(op);
    }
    if (first_operand > 0) gradient.program.push_back({SumOp::Kind::kAdd, 0});
  }

  // True for the last chunk of the step that was handed over.
  bool FinishHanding() {
    MutexLock lock(mu_);
    return --handing_ == 0;
  }

  void OnReleased(StepId step, BlobId id) {
    Calls calls;
    MutexLock lock(mu_);
    const bool finished = step < step_ || coverage_.IsWhole(id);
    if (finished) --finished_at_consumer_;
    if (step == step_) --at_consumer_[static_cast<size_t>(id.value())];
    Pump(calls);
  }

  // Fixed after construction.
  const ModelSpec& model_;
  const int num_vnodes_;
  const Dtype gradients_;
  const std::function<void(StepId, BlobId, int64_t, ChunkGradient)> consume_;
  const std::function<void(StepId, BlobId, int64_t, ChunkGradient)> show_later_uses_;  // null: nobody asks
  const std::function<void(StepId)> on_step_in_;
  const int64_t window_bytes_;
  const std::shared_ptr<ChunkPool> pool_;

  // Guarded by mu_. No ChunkGradient is destroyed under it: that calls back.
  mutable Mutex mu_;
  StepId step_ ABSL_GUARDED_BY(mu_) = StepId(-1);
  StepCoverage coverage_ ABSL_GUARDED_BY(mu_);  // of step_
  AdmissionWindow window_ ABSL_GUARDED_BY(mu_);
  int64_t handing_ ABSL_GUARDED_BY(mu_) = 0;  // chunks not given to `consume` yet
  // Chunks of step_ whose memory the consumer still has, by blob.
  std::vector<int64_t> at_consumer_ ABSL_GUARDED_BY(mu_);
  // The same of finished blobs, of whichever step.
  int64_t finished_at_consumer_ ABSL_GUARDED_BY(mu_) = 0;
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
  if (key.step == step_ && coverage_.is_dropped(key.blob)) {
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

absl::StatusOr<ChunkOutcome> Aggregator::AddChunk(const ContributionKey& key, int64_t chunk,
                                                  absl::Span<const std::byte> payload) {
  const auto copy = [payload](absl::Span<std::byte> to) {
    memcpy(to.data(), payload.data(), payload.size());
    return absl::OkStatus();
  };
  return AddChunk(key, chunk, Payload{.num_bytes = static_cast<int64_t>(payload.size()), .copy = copy});
}

absl::StatusOr<std::unique_ptr<Aggregator>> Aggregator::Create(Options options) {
  if (options.window_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("window_bytes: ", options.window_bytes, ", must be at least 0"));
  }
  EPS_CHECK(options.model != nullptr && options.virtual_nodes >= 1 && options.consume && options.on_step_in);
  if (options.window_bytes == 0)
    options.window_bytes = DefaultWindowBytes(*options.model, options.virtual_nodes, options.gradients, /*workers=*/1);
  return std::make_unique<AggregatorImpl>(std::move(options));
}

}  // namespace eps::server
