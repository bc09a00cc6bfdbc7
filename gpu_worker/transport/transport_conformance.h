#ifndef EPS_GPU_WORKER_TRANSPORT_TRANSPORT_CONFORMANCE_H_
#define EPS_GPU_WORKER_TRANSPORT_TRANSPORT_CONFORMANCE_H_

#include <atomic>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/transport/transport.h"
#include "gtest/gtest.h"

namespace eps::worker {

// What every Transport must do, written once. An implementation instantiates it:
//
//   INSTANTIATE_TEST_SUITE_P(Grpc, TransportConformanceTest, testing::Values(TransportCase{"grpc", &NewGrpcDaemon}));

// The daemon's side of a test, for a model, `virtual_nodes` of a run, and a wire dtype (leaves are pushed in it too).
class TransportTestDaemon {
 public:
  virtual ~TransportTestDaemon() = default;
  // A worker's transport; ends before the daemon.
  virtual std::unique_ptr<Transport> NewTransport() = 0;
  // Makes version `version` of `blob` readable, of these masters (num_elems). Versions of a blob in order, from 0.
  virtual void Publish(BlobId blob, Version version, absl::Span<const float> master) = 0;
  // Contributions of `step` are taken from now on.
  virtual void BeginStep(StepId step) = 0;
  // The sum over all vnodes and uses of `blob` in `step`, in the tree's order. Waits for it, for a while.
  virtual absl::StatusOr<std::vector<float>> Gradient(StepId step, BlobId blob) = 0;
};

struct TransportTestOptions {
  const ModelSpec* model = nullptr;  // outlives the daemon
  int virtual_nodes = 1;
  Dtype wire_dtype = Dtype::kBf16;
};

struct TransportCase {
  std::string name;
  std::function<std::unique_ptr<TransportTestDaemon>(TransportTestOptions)> new_daemon;
};
inline std::ostream& operator<<(std::ostream& os, const TransportCase& tested) { return os << tested.name; }

class TransportConformanceTest : public testing::TestWithParam<TransportCase> {
 protected:
  void SetUp() override;

  // Starts a daemon of a small model (four vnodes) whose first blob has three chunks, the last one short.
  void StartDaemon(Dtype wire_dtype);
  // Masters, and gradients of a vnode, of a blob: small whole numbers, exact in any dtype, different everywhere. Of a
  // gradient's rows of 200 one of nonzero_rows_ is not zero, each vnode's another one.
  std::vector<float> Master(BlobId blob, int64_t version) const;
  std::vector<float> Leaf(BlobId blob, int use, int vnode) const;
  std::vector<std::byte> ToWire(absl::Span<const float> values, Dtype dtype) const;
  // The contribution of the vnodes of `node`, with memory of its own. `released` is set when that is let go.
  Contribution Make(StepId step, BlobId blob, int use, TreeNode node, Dtype dtype,
                    std::atomic<bool>* released = nullptr) const;
  // Some chunks of it.
  Contribution MakePart(StepId step, BlobId blob, int use, TreeNode node, Dtype dtype, ChunkRange chunks,
                        std::atomic<bool>* released = nullptr) const;
  absl::StatusOr<std::vector<std::byte>> PullBytes(Transport& transport, BlobId blob, Version version) const;
  absl::StatusOr<std::vector<std::byte>> PullPart(Transport& transport, BlobId blob, Version version, ChunkRange chunks,
                                                  PullTiming* timing = nullptr) const;
  // What the sum must be.
  std::vector<float> ExpectedGradient(BlobId blob) const;

  ModelSpec model_;
  Dtype dtype_ = Dtype::kBf16;
  int nonzero_rows_ = 1;
  std::unique_ptr<TransportTestDaemon> daemon_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_TRANSPORT_TRANSPORT_CONFORMANCE_H_
