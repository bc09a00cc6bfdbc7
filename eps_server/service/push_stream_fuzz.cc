#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/formats/chunk_header.h"
#include "common/formats/sparse_chunk.h"
#include "common/grpc/byte_buffers.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "eps_server/aggregation/aggregator.h"
#include "eps_server/optimizer/chunk_gradient.h"
#include "eps_server/service/incoming_contributions.h"
#include "eps_server/service/worker_messages.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/data_plane.pb.h"

namespace eps::server {
namespace {

constexpr uint64_t kIncarnation = 7;

// Blobs of one chunk, but for wpe, whose second one has 64 elements: a part that a small message can carry.
const ModelSpec& SmallModel() {
  static const ModelSpec model =
      *BuildModel({.num_layers = 1, .d_model = 8, .num_heads = 1, .context = kChunkElems / 8 + 8, .vocab = 16});
  return model;
}

// A push stream as PushCall handles it, without gRPC's threads. Every chunk of a step may be consumed once.
class Stream {
 public:
  Stream() : contributions_(SmallModel()) {
    aggregator_ = *Aggregator::Create({.model = &SmallModel(),
                                       .virtual_nodes = 3,
                                       .gradients = Dtype::kBf16,
                                       .window_bytes = 16384,  // four small ones; the whole wpe waits
                                       .consume =
                                           [this](StepId step, BlobId blob, int64_t chunk, ChunkGradient) {
                                             if (!consumed_.insert({{step.value(), blob.value()}, chunk}).second)
                                               abort();
                                           },
                                       .on_step_in = [](StepId) {}});
    aggregator_->BeginStep(StepId(0));
  }
  ~Stream() {
    aggregator_->Stop(absl::CancelledError("the stream has ended"));
    for (const ContributionKey& key : contributions_.Unfinished()) aggregator_->Abandon(key);
  }

  absl::Status Handle(absl::Span<const uint8_t> bytes) {
    const grpc::Slice slice(bytes.data(), bytes.size());
    EPS_ASSIGN_OR_RETURN(const ReceivedMessage message, ReceivedMessage::Create(grpc::ByteBuffer(&slice, 1)));
    return message.is_offer() ? HandleOffer(message) : HandleChunk(message);
  }

 private:
  absl::Status HandleOffer(const ReceivedMessage& message) {
    proto::Offer offer;
    EPS_RETURN_IF_ERROR(message.ParseOffer(offer));
    EPS_ASSIGN_OR_RETURN(const ContributionKey key, ToKey(offer, kIncarnation));
    const uint32_t number = offer.contribution();
    EPS_RETURN_IF_ERROR(contributions_.Offer(number, key));
    aggregator_->Offer(key, [this, number](absl::StatusOr<Verdict> verdict) {
      if (!verdict.ok() || *verdict == Verdict::kNotWanted) return contributions_.Drop(number);
      contributions_.Admit(number);
    });
    return absl::OkStatus();
  }

  absl::Status HandleChunk(const ReceivedMessage& message) {
    EPS_ASSIGN_OR_RETURN(const ChunkHeader header, message.ParseChunk());
    if (!IsGradient(header.kind) || header.incarnation != kIncarnation) {
      return absl::InvalidArgumentError("not for this daemon");
    }
    EPS_ASSIGN_OR_RETURN(const IncomingContributions::Place place, contributions_.Take(header));
    if (!place.wanted) return absl::OkStatus();
    std::vector<std::byte> chunk(place.num_bytes);
    message.CopyPayload(absl::MakeSpan(chunk).last(header.payload_bytes));
    if (header.kind == ChunkKind::kSparseGradient) {
      EPS_RETURN_IF_ERROR(UnpackSparseChunk(absl::MakeSpan(chunk), header.payload_bytes));
    }
    EPS_ASSIGN_OR_RETURN(const ChunkOutcome outcome, aggregator_->AddChunk(place.key, header.chunk, chunk));
    if (outcome.complete || place.last) contributions_.Complete(header.contribution);
    return absl::OkStatus();
  }

  IncomingContributions contributions_;
  std::set<std::pair<std::pair<int64_t, int32_t>, int64_t>> consumed_;
  std::unique_ptr<Aggregator> aggregator_;
};

}  // namespace
}  // namespace eps::server

// Messages of one push stream, each after its length in two bytes. The stream ends at the first that is refused.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes) {
  constexpr size_t kLengthBytes = 2;
  eps::server::Stream stream;
  absl::Span<const uint8_t> left(data, num_bytes);
  while (left.size() >= kLengthBytes) {
    const size_t length = std::min<size_t>(left[0] | left[1] << 8, left.size() - kLengthBytes);
    if (!stream.Handle(left.subspan(kLengthBytes, length)).ok()) break;
    left.remove_prefix(kLengthBytes + length);
  }
  return 0;
}
