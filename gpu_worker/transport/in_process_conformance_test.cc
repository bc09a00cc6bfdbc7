#include <memory>

#include "gpu_worker/transport/in_process.h"
#include "gpu_worker/transport/transport_conformance.h"

namespace eps::worker {
namespace {

class InProcessDaemon final : public TransportTestDaemon {
 public:
  explicit InProcessDaemon(TransportTestOptions options)
      : store_(options.model, options.virtual_nodes, options.wire_dtype) {}

  std::unique_ptr<Transport> NewTransport() override { return std::make_unique<InProcessTransport>(&store_); }
  void Publish(BlobId blob, Version version, absl::Span<const float> master) override {
    store_.Publish(blob, version, master);
  }
  void BeginStep(StepId) override {}
  absl::StatusOr<std::vector<float>> Gradient(StepId step, BlobId blob) override { return store_.Gradient(step, blob); }

 private:
  InProcessStore store_;
};

INSTANTIATE_TEST_SUITE_P(InProcess, TransportConformanceTest,
                         testing::Values(TransportCase{"in_process", [](TransportTestOptions options) {
                                                         return std::make_unique<InProcessDaemon>(options);
                                                       }}));

}  // namespace
}  // namespace eps::worker
