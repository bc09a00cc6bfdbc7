#include "eps_server/aggregation/step_coverage.h"

#include <algorithm>
#include <utility>

#include "absl/types/span.h"

namespace eps::server {

StepCoverage::StepCoverage(const ModelSpec* model, int virtual_nodes) : model_(*model), num_vnodes_(virtual_nodes) {
  for (const BlobSpec& blob : model_.blobs) {
    if (blob.frozen) continue;
    for (size_t use = 0; use < blob.uses.size(); ++use) {
      backward_order_.push_back({blob.id, static_cast<int>(use)});
    }
  }
  std::stable_sort(backward_order_.begin(), backward_order_.end(),
                   [this](Use a, Use b) { return LayerOf(a) > LayerOf(b); });
}

void StepCoverage::Begin(const std::vector<bool>& dropped) {
  blobs_.clear();
  missing_chunks_ = 0;
  for (const BlobSpec& spec : model_.blobs) {
    BlobSlot& blob = blobs_.emplace_back();
    blob.is_dropped = !dropped.empty() && dropped[static_cast<size_t>(spec.id.value())];
    if (spec.frozen || blob.is_dropped) continue;
    blob.missing_chunks = spec.num_chunks();
    missing_chunks_ += blob.missing_chunks;
    blob.uses.resize(spec.uses.size());
    for (UseSlot& use : blob.uses) use.chunks.resize(static_cast<size_t>(spec.num_chunks()));
  }
  front_ = 0;
  AdvanceFront();
}

bool StepCoverage::Covers(const ContributionKey& key, int64_t chunk) const {
  return Covers(SlotOf(key).chunks[static_cast<size_t>(chunk)], key.node);
}

bool StepCoverage::Covers(const ContributionKey& key) const {
  const absl::Span<const Coverage> chunks =
      absl::MakeConstSpan(SlotOf(key).chunks)
          .subspan(static_cast<size_t>(key.chunks.first), static_cast<size_t>(key.chunks.count));
  return std::all_of(chunks.begin(), chunks.end(), [&](const Coverage& chunk) { return Covers(chunk, key.node); });
}

void StepCoverage::Add(const ContributionKey& key, int64_t chunk, ChunkBuffer buffer) {
  BlobSlot& blob = blobs_[key.blob.value()];
  UseSlot& use = blob.uses[key.use];
  Coverage& coverage = use.chunks[static_cast<size_t>(chunk)];
  coverage.Add({key.node, key.dtype, key.nonfinite_vnode, std::move(buffer)});
  if (!coverage.IsWhole(num_vnodes_)) return;
  ++use.whole_chunks;
  if (IsWhole(key.blob, chunk)) {
    --blob.missing_chunks;
    --missing_chunks_;
  }
  AdvanceFront();
}

bool StepCoverage::IsWholeWith(const ContributionKey& key, int64_t chunk) const {
  const std::vector<UseSlot>& uses = blobs_[key.blob.value()].uses;
  for (size_t use = 0; use < uses.size(); ++use) {
    const Coverage& coverage = uses[use].chunks[static_cast<size_t>(chunk)];
    const bool is_its_own = static_cast<int>(use) == key.use;
    if (is_its_own ? !coverage.IsWholeWith(key.node, num_vnodes_) : !coverage.IsWhole(num_vnodes_)) return false;
  }
  return true;
}

bool StepCoverage::IsWhole(BlobId blob, int64_t chunk) const {
  const std::vector<UseSlot>& uses = blobs_[blob.value()].uses;
  return std::all_of(uses.begin(), uses.end(),
                     [&](const UseSlot& use) { return use.chunks[static_cast<size_t>(chunk)].IsWhole(num_vnodes_); });
}

bool StepCoverage::HasAllButFirstUse(BlobId blob, int64_t chunk) const {
  const std::vector<UseSlot>& uses = blobs_[blob.value()].uses;
  const auto is_whole = [&](const UseSlot& use) { return use.chunks[static_cast<size_t>(chunk)].IsWhole(num_vnodes_); };
  return uses.size() > 1 && !is_whole(uses[0]) && std::all_of(uses.begin() + 1, uses.end(), is_whole);
}

const std::vector<HeldContribution>& StepCoverage::Held(BlobId blob, int use, int64_t chunk) const {
  return blobs_[blob.value()].uses[use].chunks[static_cast<size_t>(chunk)].held();
}

std::vector<HeldContribution> StepCoverage::Consume(BlobId blob, int use, int64_t chunk) {
  return blobs_[blob.value()].uses[use].chunks[static_cast<size_t>(chunk)].Consume();
}

std::optional<LayerId> StepCoverage::next_layer() const {
  if (blobs_.empty() || front_ == backward_order_.size()) return std::nullopt;
  return LayerOf(backward_order_[front_]);
}

std::vector<bool> StepCoverage::MissingVnodes() const {
  std::vector<bool> missing(static_cast<size_t>(num_vnodes_), false);
  for (const BlobSlot& blob : blobs_) {
    for (const UseSlot& use : blob.uses) AddMissing(use, missing);
  }
  return missing;
}

std::vector<bool> StepCoverage::VnodesMissingNext() const {
  std::vector<bool> missing(static_cast<size_t>(num_vnodes_), false);
  const std::optional<LayerId> next = next_layer();
  for (size_t i = front_; next.has_value() && i < backward_order_.size() && LayerOf(backward_order_[i]) == *next; ++i) {
    const Use use = backward_order_[i];
    const BlobSlot& blob = blobs_[use.blob.value()];
    if (!blob.is_dropped) AddMissing(blob.uses[use.use], missing);
  }
  return missing;
}

void StepCoverage::AddMissing(const UseSlot& use, std::vector<bool>& missing) const {
  for (const Coverage& chunk : use.chunks) {
    if (chunk.IsWhole(num_vnodes_)) continue;
    for (int v = 0; v < num_vnodes_; ++v) {
      if (!missing[v] && !chunk.Covers(v)) missing[v] = true;
    }
  }
}

std::vector<BlobId> StepCoverage::MissingBlobs() const {
  std::vector<BlobId> missing;
  for (size_t b = 0; b < blobs_.size(); ++b) {
    if (blobs_[b].missing_chunks > 0) missing.push_back(model_.blobs[b].id);
  }
  return missing;
}

bool StepCoverage::IsWhole(Use use) const {
  const BlobSlot& blob = blobs_[use.blob.value()];
  return blob.is_dropped || blob.uses[use.use].whole_chunks == model_.blob(use.blob).num_chunks();
}

void StepCoverage::AdvanceFront() {
  while (front_ < backward_order_.size() && IsWhole(backward_order_[front_])) ++front_;
}

}  // namespace eps::server
