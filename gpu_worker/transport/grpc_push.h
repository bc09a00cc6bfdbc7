#ifndef EPS_GPU_WORKER_TRANSPORT_GRPC_PUSH_H_
#define EPS_GPU_WORKER_TRANSPORT_GRPC_PUSH_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <variant>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/chunk_header.h"
#include "common/model/model_spec.h"
#include "gpu_worker/transport/transport.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "proto/data_plane.pb.h"

namespace eps::worker {

// The one stream on which a worker offers its contributions and sends the chunks of those admitted.
//
// One message is under way at a time; which one is next is decided when the one before has left: offers first,
// so that the daemon knows what it may ask for, then chunks, contribution by contribution in the order of
// admission.
//
// Threads: safe. The destructor blocks until gRPC has let go of the stream.
class GrpcPush final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  // `model` and `stub` outlive it. `on_failure` is called once, from gRPC's thread, when the stream ends before
  // Cancel was called.
  GrpcPush(grpc::GenericStub& stub, uint64_t incarnation, WorkerId worker_id, const ModelSpec& model,
           std::function<void(absl::Status)> on_failure);
  ~GrpcPush() override;

  // As Transport's.
  void Push(Contribution contribution) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel(absl::Status reason) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Pending {
    Contribution contribution;
    int64_t next_chunk = 0;  // to send, of the contribution's
  };

  // A chunk that is to be sent; `payload` lies in what `owner` keeps.
  struct OutgoingChunk {
    ChunkHeader header;
    absl::Span<const std::byte> payload;
    std::shared_ptr<void> owner;
  };
  using Outgoing = std::variant<proto::Offer, OutgoingChunk>;

  // Fails what is under way and ends the call; OnDone comes.
  void Stop(absl::Status reason) ABSL_LOCKS_EXCLUDED(mu_);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  // Sends no more; the caller then calls RemoveHold if the result is true.
  bool End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Starts sending the next message, if there is one and none is under way.
  void SendNext() ABSL_LOCKS_EXCLUDED(mu_);
  std::optional<Outgoing> Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  proto::Offer OfferOf(uint32_t number) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  OutgoingChunk NextChunk(uint32_t number, Pending& pending) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A chunk is packed where it is mostly zeros, and else sent from where it lies.
  static grpc::ByteBuffer MessageOf(Outgoing next);
  absl::Status Apply(const proto::PushReply& reply) ABSL_LOCKS_EXCLUDED(mu_);

  // Fixed after construction.
  const uint64_t incarnation_;
  const WorkerId worker_id_;
  const ModelSpec& model_;
  const std::function<void(absl::Status)> on_failure_;
  // Used by gRPC between a Start and its reaction.
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;

  Mutex mu_;
  CondVar changed_;
  std::map<uint32_t, Pending> pending_ ABSL_GUARDED_BY(mu_);  // by number; until COMPLETE or NOT_WANTED
  std::deque<uint32_t> offers_ ABSL_GUARDED_BY(mu_);          // to be sent
  std::deque<uint32_t> admitted_ ABSL_GUARDED_BY(mu_);        // whose chunks are to be sent
  uint32_t last_number_ ABSL_GUARDED_BY(mu_) = 0;
  // The call, until OnDone: with it goes what gRPC still has of a message that was under way when the stream ended.
  std::shared_ptr<grpc::ClientContext> context_ ABSL_GUARDED_BY(mu_) = std::make_shared<grpc::ClientContext>();
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = true;        // gRPC's hold: messages may be sent from outside of reactions
  bool ended_ ABSL_GUARDED_BY(mu_) = false;      // nothing may be sent any more; OnDone will say why
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;  // from outside, where nobody need be told
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_GRPC_PUSH_H_
