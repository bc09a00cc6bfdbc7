#ifndef EPS_GPU_WORKER_TRANSPORT_GRPC_PULL_H_
#define EPS_GPU_WORKER_TRANSPORT_GRPC_PULL_H_

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/mutex.h"
#include "common/formats/chunk_header.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/transport.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"

namespace eps::worker {

// One connection's stream of pulls, one after another: a request, and the chunks asked for in order. It stays open
// between them, so that a pull costs no call.
//
// Threads: Start, then Wait, from one; Cancel from any. The destructor blocks until gRPC has let go of the stream.
class GrpcPull final : private grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  struct Request {
    const BlobSpec* blob = nullptr;
    Version version;
    ChunkRange chunks;                  // at least one
    absl::Span<std::byte> destination;  // for these chunks alone
  };
  // `stub` outlives it. `dtype` is the wire's.
  GrpcPull(grpc::GenericStub& stub, uint64_t incarnation, Dtype dtype);
  ~GrpcPull() override;

  // The pull before has been waited for.
  void Start(const Request& request) ABSL_LOCKS_EXCLUDED(mu_);
  // Blocks until every chunk is in its place. Errors: Transport::Pull's; then all that come fail too
  absl::StatusOr<PullTiming> Wait() ABSL_LOCKS_EXCLUDED(mu_);
  void Cancel() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  using Clock = std::chrono::steady_clock;

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  // How much of the time until the first chunk was there it waited for its version.
  double VersionWaitSeconds(const ChunkHeader& first) const;
  // Checks the header of chunk `chunk` of the blob.
  absl::Status Check(const ChunkHeader& header, int64_t chunk) const;
  // Of a reaction after which nothing is read any more. OK: the daemon has ended the stream; OnDone will say why.
  void EndReading(absl::Status error) ABSL_LOCKS_EXCLUDED(mu_);
  // Starts no operation any more; the caller then calls RemoveHold if the result is true.
  bool End() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsComplete() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return uncopied_chunks_ == 0 && !writing_; }

  // Fixed after construction.
  const uint64_t incarnation_;
  const Dtype wire_;
  grpc::ClientContext context_;
  // Fixed from Start to the end of Wait.
  Request request_;
  Clock::time_point begin_;
  // Used by gRPC between a Start and its reaction.
  grpc::ByteBuffer outgoing_;
  grpc::ByteBuffer incoming_;

  Mutex mu_;
  CondVar changed_;
  int64_t next_chunk_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t uncopied_chunks_ ABSL_GUARDED_BY(mu_) = 0;      // of this pull, not yet in their places
  double version_wait_seconds_ ABSL_GUARDED_BY(mu_) = 0;  // of this pull, once the first chunk is there
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool reading_ ABSL_GUARDED_BY(mu_) = false;
  bool held_ ABSL_GUARDED_BY(mu_) = true;    // gRPC's hold: operations are started from outside of reactions
  bool ended_ ABSL_GUARDED_BY(mu_) = false;  // nothing may be started any more; OnDone will say why
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_GRPC_PULL_H_
