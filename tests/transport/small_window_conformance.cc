#include "tests/transport/small_window_conformance.h"

#include <vector>

#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "common/tensor/dtype.h"
#include "common/testing/status_matchers.h"

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

}  // namespace eps::worker
