#include "gpu_worker/relay/weight_puller.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/plan/group_parts.h"
#include "gpu_worker/relay/group_exchange.h"

namespace eps::worker {

WeightPuller::WeightPuller(const ModelSpec& model, Device& device, Transport& transport, const ArenaMap& arena,
                           Dtype wire, PullClock& clock)
    : model_(model), device_(device), transport_(transport), arena_(arena), wire_(wire), clock_(clock) {}

absl::StatusOr<PassWeights> WeightPuller::Find(Version version) {
  const bool direct = device_.properties().host_addressable;
  std::vector<const std::byte*> addresses = InPlace(version);
  if (!addresses.empty()) {
    return PassWeights{version, direct ? WeightSource::kInPlace : WeightSource::kCopied, std::move(addresses)};
  }
  if (direct) return PassWeights{version, WeightSource::kPulled};
  if (staging_.bytes.empty()) {
    EPS_ASSIGN_OR_RETURN(staging_, device_.NewHostMemory(model_.max_layer_bytes(wire_)));
  }
  return PassWeights{version, WeightSource::kStaged};
}

void WeightPuller::Enqueue(const RelayStep& step, const PassContext& pass, Group* group) {
  Stream& in = device_.stream(StreamId::kIn);
  std::byte* slot = Slot(arena_.weights, step.weights);
  switch (pass.weights.source) {
    case WeightSource::kInPlace:
      if (ReadsInPlace(model_.layer(step.layer), pass)) {
        EnqueueAwait(step, pass, group);
      } else {
        EnqueuePull(step, pass, group, slot);
      }
      return;  // whole
    case WeightSource::kCopied:
      EnqueueAwait(step, pass, group);
      for (const Part& part : PartsOf(step.layer, pass)) in.CopyIn(Within(slot, part).data(), WithDaemon(pass, part));
      break;
    case WeightSource::kPulled:
      EnqueuePull(step, pass, group, slot);
      break;
    case WeightSource::kStaged: {
      std::byte* staging = staging_.bytes.data();
      EnqueuePull(step, pass, group, staging);
      for (const Part& part : PartsOf(step.layer, pass)) in.CopyIn(Within(slot, part).data(), Within(staging, part));
      break;
    }
  }
  if (group != nullptr) EnqueueExchange(step, pass, group);
}

void WeightPuller::EnqueueAwait(const RelayStep& step, const PassContext& pass, Group* group) {
  // The copies before it need not be done first, so that a GPU goes from one to the next.
  device_.stream(StreamId::kIn).IssueNative([this, &step, &pass, group](void*) {
    return EndOnError(group, GetEach(step, pass, [&](const Part& part) {
                        absl::StatusOr<PullTiming> timing =
                            transport_.Await(part.blob, pass.weights.version, part.chunks);
                        if (timing.ok()) device_.ExpectCopiesFrom(WithDaemon(pass, part));
                        return timing;
                      }));
  });
}

void WeightPuller::EnqueuePull(const RelayStep& step, const PassContext& pass, Group* group, std::byte* to) {
  device_.stream(StreamId::kIn).HostCall([this, &step, &pass, group, to] {
    return EndOnError(group, GetEach(step, pass, [&](const Part& part) {
                        return transport_.Pull(part.blob, pass.weights.version, part.chunks, Within(to, part));
                      }));
  });
}

void WeightPuller::EnqueueExchange(const RelayStep& step, const PassContext& pass, Group* group) {
  group->Enqueue(GroupLane::kPull, ExchangeWeights(*pass.group, step.layer, wire_, Slot(arena_.weights, step.weights)));
  // On a GPU an exchange that was cut short ends like any other: nothing may be computed with what it left.
  device_.stream(StreamId::kIn).HostCall([group] { return group->status(); });
}

absl::Status WeightPuller::GetEach(const RelayStep& step, const PassContext& pass,
                                   const std::function<absl::StatusOr<PullTiming>(const Part&)>& get) {
  for (const Part& part : PartsOf(step.layer, pass)) {
    const PullClock::Time begin = std::chrono::steady_clock::now();
    const absl::StatusOr<PullTiming> timing = get(part);
    if (!timing.ok()) {
      return Annotate(timing.status(), absl::StrCat("pull of blob ", model_.blob(part.blob).name, ", version ",
                                                    pass.weights.version.value()));
    }
    clock_.Pulled(begin, timing->version_wait_seconds, std::chrono::steady_clock::now());
  }
  return absl::OkStatus();
}

std::vector<WeightPuller::Part> WeightPuller::PartsOf(LayerId layer, const PassContext& pass) const {
  std::vector<Part> parts;
  if (pass.group != nullptr && !pass.weights.in_place()) {
    for (const GroupParts::Piece& piece : pass.group->WeightPiecesOf(layer, pass.group->rank())) {
      parts.push_back({piece.use.blob, piece.chunks, pass.group->BytesOf(piece, wire_)});
    }
    return parts;
  }
  for (const BlobUse& use : model_.layer(layer).blobs) {
    const BlobSpec& blob = model_.blob(use.blob);
    parts.push_back({use.blob, blob.all_chunks(), {ModelSpec::first_wire_byte(use, wire_), blob.wire_bytes(wire_)}});
  }
  return parts;
}

absl::Span<const std::byte> WeightPuller::WithDaemon(const PassContext& pass, const Part& part) const {
  const BlobSpec& blob = model_.blob(part.blob);
  return absl::MakeConstSpan(pass.weights.address(part.blob) + blob.part_first_byte(part.chunks, wire_),
                             static_cast<size_t>(blob.part_bytes(part.chunks, wire_)));
}

absl::Span<std::byte> WeightPuller::Within(std::byte* slot, const Part& part) const {
  return absl::MakeSpan(slot + part.in_slot.first, static_cast<size_t>(part.in_slot.count));
}

std::vector<const std::byte*> WeightPuller::InPlace(Version version) const {
  std::vector<const std::byte*> addresses;
  for (const BlobSpec& blob : model_.blobs) {
    addresses.push_back(transport_.InPlace(blob.id, version));
    if (addresses.back() == nullptr) return {};
  }
  return addresses;
}

}  // namespace eps::worker
