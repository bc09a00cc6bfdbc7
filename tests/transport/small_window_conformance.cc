#include "tests/transport/small_window_conformance.h"

#include <memory>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/schedule/chunk_range.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"
#include "gpu_worker/transport/transport.h"

namespace eps::worker {

TEST_P(SmallWindowTest, EverythingGetsItsTurnInWhateverOrderItIsPushed) {
  for (const bool backward : {true, false}) {
    StartDaemon(Dtype::kBf16);
    daemon_->BeginStep(StepId(0));
    const auto first = daemon_->NewTransport();
    const auto second = daemon_->NewTransport();
    std::vector<const LayerSpec*> layers;
    for (const LayerSpec& layer : model_.layers) layers.insert(backward ? layers.begin() : layers.end(), &layer);
    for (const LayerSpec* layer : layers) {
      for (const BlobUse& use : layer->blobs) {
        for (int vnode = 0; vnode < 4; ++vnode) {
          (vnode < 2 ? first : second)->Push(Make(StepId(0), use.blob, use.use, {vnode, 1}, Dtype::kBf16));
        }
      }
    }
    EXPECT_OK(first->Flush());
    EXPECT_OK(second->Flush());
    for (const BlobSpec& blob : model_.blobs) {
      EXPECT_THAT(daemon_->Gradient(StepId(0), blob.id), IsOkAndHolds(ExpectedGradient(blob.id)));
    }
  }
}

TEST_P(SmallWindowTest, PartsOfAGroupGetTheirTurnToo) {
  for (const bool backward : {true, false}) {
    StartDaemon(Dtype::kBf16);
    daemon_->BeginStep(StepId(0));
    constexpr int kMembers = 3;
    std::vector<std::unique_ptr<Transport>> members;
    for (int member = 0; member < kMembers; ++member) members.push_back(daemon_->NewTransport());
    std::vector<const LayerSpec*> layers;
    for (const LayerSpec& layer : model_.layers) layers.insert(backward ? layers.begin() : layers.end(), &layer);
    for (int member = 0; member < kMembers; ++member) {
      for (const LayerSpec* layer : layers) {
        for (const BlobUse& use : layer->blobs) {
          const ChunkRange part = PartOf(model_.blob(use.blob).num_chunks(), member, kMembers);
          if (part.empty()) continue;
          members[member]->Push(MakePart(StepId(0), use.blob, use.use, {0, 4}, Dtype::kF32, part));
        }
      }
    }
    for (const auto& member : members) EXPECT_OK(member->Flush());
    for (const BlobSpec& blob : model_.blobs) {
      EXPECT_THAT(daemon_->Gradient(StepId(0), blob.id), IsOkAndHolds(ExpectedGradient(blob.id)));
    }
  }
}

}  // namespace eps::worker
