#include "gpu_worker/transport/grpc_transport.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/grpc_pull.h"
#include "gpu_worker/transport/grpc_push.h"
#include "grpcpp/generic/generic_stub.h"

namespace eps::worker {
namespace {

class GrpcTransport final : public Transport {
 public:
  explicit GrpcTransport(GrpcTransportOptions options) : options_(std::move(options)) {
    EPS_CHECK(!options_.channels.empty());
    for (const auto& channel : options_.channels) stubs_.push_back(std::make_unique<grpc::GenericStub>(channel));
  }

  ~GrpcTransport() override {
    Cancel(absl::CancelledError("the transport was closed"));
    std::unique_ptr<GrpcPush> push;
    std::vector<std::unique_ptr<GrpcPull>> pulls;
    {
      MutexLock lock(mu_);
      push = std::move(push_);
      pulls.swap(pulls_);
    }
    push.reset();  // its last reactions may still come to Cancel
  }

  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, ChunkRange chunks,
                                  absl::Span<std::byte> destination) override {
    const BlobSpec& spec = options_.model->blob(blob);
    const Dtype wire = options_.wire_dtype;
    EPS_CHECK(!chunks.empty() && static_cast<int64_t>(destination.size()) == spec.part_bytes(chunks, wire));
    // Contiguous ranges, one for each connection, as long as there is a chunk for each.
    const int num_ranges = static_cast<int>(std::min(static_cast<int64_t>(stubs_.size()), chunks.count));
    EPS_ASSIGN_OR_RETURN(const std::vector<GrpcPull*> streams, PullStreams());
    for (int i = 0; i < num_ranges; ++i) {
      const ChunkRange within = PartOf(chunks.count, i, num_ranges);
      const ChunkRange range = {.first = chunks.first + within.first, .count = within.count};
      const ChunkRange before = {.first = chunks.first, .count = within.first};
      streams[i]->Start({.blob = &spec,
                         .version = version,
                         .chunks = range,
                         .destination = destination.subspan(static_cast<size_t>(spec.part_bytes(before, wire)),
                                                            static_cast<size_t>(spec.part_bytes(range, wire)))});
    }
    absl::StatusOr<PullTiming> timing = PullTiming();
    for (int i = 0; i < num_ranges; ++i) {
      const absl::StatusOr<PullTiming> of_range = streams[i]->Wait();
      if (!of_range.ok()) {
        if (timing.ok()) timing = of_range.status();
        for (GrpcPull* stream : streams) stream->Cancel();
      } else if (timing.ok()) {
        timing->version_wait_seconds = std::max(timing->version_wait_seconds, of_range->version_wait_seconds);
      }
    }
    if (timing.ok()) return timing;
    const absl::Status failure =
        Annotate(timing.status(), absl::StrCat("pull of blob ", spec.name, ", version ", version.value()));
    Fail(failure);
    MutexLock lock(mu_);
    return first_error_ == failure ? timing.status() : first_error_;  // who pulls says itself of what
  }

  void Push(Contribution contribution) override {
    EPS_CHECK(!contribution.chunks.empty());
    EPS_CHECK(static_cast<int64_t>(contribution.payload.size()) ==
              options_.model->blob(contribution.blob).part_elems(contribution.chunks) * SizeOf(contribution.dtype));
    GrpcPush* push = PushStream();
    if (push == nullptr) return;  // on_failure, or who cancelled it, knows why
    push->Push(std::move(contribution));
  }

  absl::Status Flush() override {
    GrpcPush* push = nullptr;
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(first_error_);
      push = push_.get();
    }
    if (push == nullptr) return absl::OkStatus();
    const absl::Status flushed = push->Flush();
    MutexLock lock(mu_);
    return first_error_.ok() ? flushed : first_error_;
  }

  void Cancel(absl::Status reason) override { End(std::move(reason)); }

 private:
  // Opens them at their first use, one on each connection. One thread pulls.
  absl::StatusOr<std::vector<GrpcPull*>> PullStreams() {
    std::vector<std::unique_ptr<GrpcPull>> opened;
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(first_error_);
      if (!pulls_.empty()) return Pointers(pulls_);
    }
    // Not under the lock: gRPC may call back.
    for (const auto& stub : stubs_) {
      opened.push_back(std::make_unique<GrpcPull>(*stub, options_.incarnation, options_.wire_dtype));
    }
    MutexLock lock(mu_);
    EPS_RETURN_IF_ERROR(first_error_);
    pulls_.swap(opened);
    return Pointers(pulls_);
  }
  static std::vector<GrpcPull*> Pointers(const std::vector<std::unique_ptr<GrpcPull>>& owned) {
    std::vector<GrpcPull*> result;
    for (const auto& each : owned) result.push_back(each.get());
    return result;
  }

  // Opens the stream at its first use; null once the transport has failed. One thread pushes.
  GrpcPush* PushStream() {
    {
      MutexLock lock(mu_);
      if (!first_error_.ok()) return nullptr;
      if (push_ != nullptr) return push_.get();
    }
    // Not under the lock: gRPC may call back.
    auto push = std::make_unique<GrpcPush>(*stubs_.front(), options_.incarnation, options_.worker_id, *options_.model,
                                           [this](absl::Status failure) { Fail(std::move(failure)); });
    MutexLock lock(mu_);
    if (!first_error_.ok()) push->Cancel(first_error_);
    push_ = std::move(push);
    return push_.get();
  }

  // The first one holds.
  void End(absl::Status reason) {
    GrpcPush* push = nullptr;
    absl::Status first_error;
    {
      MutexLock lock(mu_);
      if (first_error_.ok()) first_error_ = std::move(reason);
      first_error = first_error_;
      for (const auto& pull : pulls_) pull->Cancel();
      push = push_.get();
    }
    if (push != nullptr) push->Cancel(first_error);
  }

  // Reports before anybody who waits wakes up, and lets a second failure wait for that: whoever finds a pull failed is
  // to find the reason told.
  void Fail(const absl::Status& failure) {
    {
      MutexLock lock(report_mu_);
      if (!std::exchange(reported_, true) && !HasEnded() && options_.on_failure) options_.on_failure(failure);
    }
    End(failure);
  }
  bool HasEnded() {
    MutexLock lock(mu_);
    return !first_error_.ok();
  }

  // Fixed after construction.
  const GrpcTransportOptions options_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;  // of each channel

  Mutex report_mu_;  // outside of mu_
  bool reported_ ABSL_GUARDED_BY(report_mu_) = false;

  Mutex mu_;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<GrpcPull>> pulls_ ABSL_GUARDED_BY(mu_);  // of each channel; none before the first pull
  std::unique_ptr<GrpcPush> push_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Transport> NewGrpcTransport(GrpcTransportOptions options) {
  return std::make_unique<GrpcTransport>(std::move(options));
}

}  // namespace eps::worker
