#include "gpu_worker/transport/in_process.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/numeric/bf16.h"
#include "common/numeric/fp16.h"
#include "common/numeric/quantized.h"
#include "common/tensor/to_floats.h"

namespace eps::worker {
namespace {

std::vector<std::byte> ToWire(const BlobSpec& blob, absl::Span<const float> values, Dtype wire) {
  std::vector<std::byte> bytes(static_cast<size_t>(blob.wire_bytes(wire)));
  if (blob.is_quantized()) {
    EncodeQuantized(*blob.quantized, values, 0, blob.num_elems, bytes.data());
    return bytes;
  }
  if (wire == Dtype::kF32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = wire == Dtype::kBf16 ? ToBf16(values[i]).bits : ToFp16(values[i]).bits;
    std::memcpy(bytes.data() + i * sizeof(bits), &bits, sizeof(bits));
  }
  return bytes;
}

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

InProcessStore::InProcessStore(const ModelSpec* model, int num_vnodes, Dtype wire)
    : model_(*model), num_vnodes_(num_vnodes), wire_(wire) {}

void InProcessStore::Publish(BlobId blob, Version version, absl::Span<const float> master) {
  std::vector<std::byte> wire = ToWire(model_.blob(blob), master, wire_);
  MutexLock lock(mu_);
  versions_[{blob.value(), version.value()}] = std::move(wire);
  changed_.NotifyAll();
}

void InProcessStore::Retire(Version version) {
  MutexLock lock(mu_);
  const int64_t retired = std::max(retired_, version.value());
  retired_ = retired;
  std::erase_if(versions_, [&](const auto& entry) { return entry.first.second <= retired; });
  changed_.NotifyAll();
}

void InProcessStore::FailPull(BlobId blob, int successes, absl::Status error) {
  MutexLock lock(mu_);
  faults_[blob.value()] = {successes, std::move(error)};
}

absl::StatusOr<std::vector<std::byte>> InProcessStore::Wire(BlobId blob, Version version,
                                                            const absl::Status& cancelled) {
  if (const auto fault = faults_.find(blob.value()); fault != faults_.end() && fault->second.successes-- == 0) {
    absl::Status error = fault->second.error;
    faults_.erase(fault);
    return error;
  }
  while (true) {
    if (!cancelled.ok()) return cancelled;
    if (version.value() <= retired_) {
      return absl::AbortedError(absl::StrCat("blob ", blob.value(), " version ", version.value(), " was overwritten"));
    }
    const auto found = versions_.find({blob.value(), version.value()});
    if (found != versions_.end()) return found->second;
    changed_.Wait(mu_);
  }
}

absl::Status InProcessStore::Take(const Contribution& c) {
  const BlobSpec& blob = model_.blob(c.blob);
  EPS_RETURN_IF_ERROR_WITH(CheckChunks(blob, c.chunks), absl::StrCat("contribution to blob ", blob.name));
  const int64_t elem_bytes = SizeOf(c.dtype);
  const size_t want_bytes = static_cast<size_t>(blob.part_elems(c.chunks) * elem_bytes);
  if (c.payload.size() != want_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("contribution to blob ", blob.name, ": ", c.payload.size(), " bytes, want ", want_bytes));
  }
  if (!IsTreeNode(c.node, num_vnodes_) || (c.dtype != Dtype::kF32 && !c.node.is_leaf())) {
    return absl::InvalidArgumentError(absl::StrCat("contribution to blob ", blob.name, ": node ", DebugString(c.node),
                                                   " in ", std::string(DtypeName(c.dtype))));
  }
  MutexLock lock(mu_);
  ++num_pushes_;
  if (c.nonfinite_vnode >= 0) non_finite_[c.step.value()].push_back(c.nonfinite_vnode);
  for (int64_t chunk = c.chunks.first; chunk < c.chunks.end(); ++chunk) {
    const auto payload = c.payload.subspan(static_cast<size_t>((chunk - c.chunks.first) * kChunkElems * elem_bytes),
                                           static_cast<size_t>(blob.chunk_elems(chunk) * elem_bytes));
    Hold(held_[{c.step.value(), c.blob.value(), c.use, chunk}], {c.node, c.dtype, ToFloats(payload, c.dtype)});
  }
  return absl::OkStatus();
}

void InProcessStore::Hold(std::vector<HeldNode>& held, HeldNode node) {
  for (const HeldNode& other : held) {
    if (other.node.Contains(node.node)) return;  // already counted
  }
  std::erase_if(held, [&](const HeldNode& other) { return node.node.Contains(other.node); });
  const auto after =
      std::find_if(held.begin(), held.end(), [&](const HeldNode& other) { return other.node.first > node.node.first; });
  held.insert(after, std::move(node));
}

absl::StatusOr<std::vector<float>> InProcessStore::Sum(const BlobSpec& blob, const ChunkKey& key) const {
  const auto found = held_.find(key);
  std::vector<TreeNode> nodes;
  int leaves = 0;
  if (found != held_.end()) {
    for (const HeldNode& held : found->second) {
      nodes.push_back(held.node);
      leaves += held.node.count;
    }
  }
  if (leaves != num_vnodes_) {
    return absl::FailedPreconditionError(absl::StrCat("blob ", blob.name, " use ", std::get<2>(key), " chunk ",
                                                      std::get<3>(key), ": ", leaves, " of ", num_vnodes_,
                                                      " vnodes are in"));
  }
  std::vector<std::vector<float>> stack;
  for (const SumOp& op : SumProgram(nodes, num_vnodes_)) {
    if (op.kind == SumOp::Kind::kLoad) {
      stack.push_back(found->second[static_cast<size_t>(op.operand)].values);
      continue;
    }
    const std::vector<float> right = std::move(stack.back());
    stack.pop_back();
    for (size_t i = 0; i < right.size(); ++i) stack.back()[i] += right[i];
  }
  return std::move(stack.back());
}

absl::StatusOr<std::vector<float>> InProcessStore::UseGradient(StepId step, BlobId blob, int use) const {
  std::vector<float> all;
  MutexLock lock(mu_);
  for (int64_t chunk = 0; chunk < model_.blob(blob).num_chunks(); ++chunk) {
    EPS_ASSIGN_OR_RETURN(const std::vector<float> sum,
                         Sum(model_.blob(blob), {step.value(), blob.value(), use, chunk}));
    all.insert(all.end(), sum.begin(), sum.end());
  }
  return all;
}

absl::StatusOr<std::vector<float>> InProcessStore::Gradient(StepId step, BlobId blob) const {
  std::vector<float> sum;
  for (size_t use = 0; use < model_.blob(blob).uses.size(); ++use) {
    EPS_ASSIGN_OR_RETURN(const std::vector<float> part, UseGradient(step, blob, static_cast<int>(use)));
    if (sum.empty()) {
      sum = part;
      continue;
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

std::vector<TreeNode> InProcessStore::Held(StepId step, BlobId blob, int use, int64_t chunk) const {
  MutexLock lock(mu_);
  std::vector<TreeNode> nodes;
  const auto found = held_.find({step.value(), blob.value(), use, chunk});
  if (found == held_.end()) return nodes;
  for (const HeldNode& held : found->second) nodes.push_back(held.node);
  return nodes;
}

absl::StatusOr<Dtype> InProcessStore::HeldDtype(StepId step, BlobId blob, int use, TreeNode node) const {
  MutexLock lock(mu_);
  const auto found = held_.find({step.value(), blob.value(), use, 0});
  if (found != held_.end()) {
    for (const HeldNode& held : found->second) {
      if (held.node == node) return held.dtype;
    }
  }
  return absl::NotFoundError(DebugString(node));
}

std::vector<int> InProcessStore::NonFiniteVnodes(StepId step) const {
  MutexLock lock(mu_);
  const auto found = non_finite_.find(step.value());
  return found == non_finite_.end() ? std::vector<int>() : found->second;
}

int64_t InProcessStore::num_pulls() const {
  MutexLock lock(mu_);
  return num_pulls_;
}

int64_t InProcessStore::num_pushes() const {
  MutexLock lock(mu_);
  return num_pushes_;
}

absl::StatusOr<PullTiming> InProcessTransport::Pull(BlobId blob, Version version, ChunkRange chunks,
                                                    absl::Span<std::byte> destination) {
  const BlobSpec& spec = store_.model_.blob(blob);
  EPS_RETURN_IF_ERROR(CheckChunks(spec, chunks));
  const auto asked = std::chrono::steady_clock::now();
  PullTiming timing;
  std::vector<std::byte> wire;
  {
    MutexLock lock(store_.mu_);
    EPS_ASSIGN_OR_RETURN(wire, store_.Wire(blob, version, failure_));
    ++store_.num_pulls_;
  }
  timing.version_wait_seconds = SecondsSince(asked);
  const size_t want_bytes = static_cast<size_t>(spec.part_bytes(chunks, store_.wire_));
  if (destination.size() != want_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("destination: room for ", destination.size(), " bytes, want ", want_bytes));
  }
  std::memcpy(destination.data(), wire.data() + spec.part_first_byte(chunks, store_.wire_), destination.size());
  return timing;
}

void InProcessTransport::Push(Contribution contribution) {
  {
    MutexLock lock(store_.mu_);
    if (!failure_.ok()) return;
  }
  const absl::Status status = store_.Take(contribution);
  MutexLock lock(store_.mu_);
  if (failure_.ok()) failure_ = status;
}

absl::Status InProcessTransport::Flush() {
  MutexLock lock(store_.mu_);
  return failure_;
}

void InProcessTransport::Cancel(absl::Status reason) {
  MutexLock lock(store_.mu_);
  if (failure_.ok()) failure_ = std::move(reason);
  store_.changed_.NotifyAll();
}

}  // namespace eps::worker
