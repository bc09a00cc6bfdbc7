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
    {
      MutexLock lock(mu_);
      push = std::move(push_);
    }
    push.reset();  // its last reactions may still come to Cancel
  }

  absl::StatusOr<PullTiming> Pull(BlobId blob, Version version, absl::Span<std::byte> destination) override {
    const BlobSpec& spec = options_.model->blob(blob);
    EPS_CHECK(static_cast<int64_t>(destination.size()) == spec.num_elems * SizeOf(options_.wire_dtype));
    // Contiguous parts, one for each connection, as long as there is a chunk for each.
    const int64_t num_parts = std::min<int64_t>(static_cast<int64_t>(stubs_.size()), spec.num_chunks());
    std::vector<std::unique_ptr<GrpcPull>> parts;
    for (int64_t i = 0; i < num_parts; ++i) {
      parts.push_back(
          std::make_unique<GrpcPull>(GrpcPull::Request{.incarnation = options_.incarnation,
                                                       .blob = &spec,
                                                       .version = version,
                                                       .dtype = options_.wire_dtype,
                                                       .destination = destination,
                                                       .first_chunk = i * spec.num_chunks() / num_parts,
                                                       .end_chunk = (i + 1) * spec.num_chunks() / num_parts}));
    }
    {
      MutexLock lock(mu_);
      EPS_RETURN_IF_ERROR(first_error_);
      for (const auto& part : parts) pulls_.push_back(part.get());
    }
    for (int64_t i = 0; i < num_parts; ++i) parts[i]->Start(*stubs_[i]);
    absl::StatusOr<PullTiming> timing = PullTiming();
    for (const auto& part : parts) {
      const absl::StatusOr<PullTiming> of_part = part->Wait();
      if (!of_part.ok()) {
        if (timing.ok()) timing = of_part.status();
        for (const auto& other : parts) other->Cancel();  // one that has ended takes no notice
      } else if (timing.ok()) {
        timing->version_wait_seconds = std::max(timing->version_wait_seconds, of_part->version_wait_seconds);
        timing->transfer_seconds = std::max(timing->transfer_seconds, of_part->transfer_seconds);
      }
    }
    {
      MutexLock lock(mu_);
      pulls_.clear();
      if (timing.ok()) return timing;
    }
    const absl::Status failure =
        Annotate(timing.status(), absl::StrCat("pull of blob ", spec.name, ", version ", version.value()));
    Fail(failure);
    MutexLock lock(mu_);
    return first_error_;
  }

  void Push(Contribution contribution) override {
    GrpcPush* push = PushStream();
    if (push == nullptr) return;  // Flush says why
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

  void Cancel(absl::Status reason) override {
    GrpcPush* push = nullptr;
    absl::Status first_error;
    {
      MutexLock lock(mu_);
      if (first_error_.ok()) first_error_ = std::move(reason);
      first_error = first_error_;
      for (GrpcPull* pull : pulls_) pull->Cancel();
      push = push_.get();
    }
    if (push != nullptr) push->Cancel(first_error);
  }

 private:
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

  void Fail(const absl::Status& failure) {
    bool first;
    {
      MutexLock lock(mu_);
      first = first_error_.ok();
    }
    Cancel(failure);
    if (first && options_.on_failure) options_.on_failure(failure);
  }

  // Fixed after construction.
  const GrpcTransportOptions options_;
  std::vector<std::unique_ptr<grpc::GenericStub>> stubs_;  // of each channel

  Mutex mu_;
  absl::Status first_error_ ABSL_GUARDED_BY(mu_);
  std::vector<GrpcPull*> pulls_ ABSL_GUARDED_BY(mu_);  // under way; of Pull's frame
  std::unique_ptr<GrpcPush> push_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<Transport> NewGrpcTransport(GrpcTransportOptions options) {
  return std::make_unique<GrpcTransport>(std::move(options));
}

}  // namespace eps::worker
