#ifndef EPS_GPU_WORKER_RELAY_STEP_LABEL_H_
#define EPS_GPU_WORKER_RELAY_STEP_LABEL_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/model/model_spec.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/plan/relay_step.h"

namespace eps::worker {

// What a step's work is called in errors: "step 41, layer h.3, backward". `model` and `work` outlive it.
class StepLabel final : public WorkLabel {
 public:
  StepLabel(const ModelSpec* model, StepId step, const RelayStep* work) : model_(*model), step_(step), work_(*work) {}
  std::string ToString() const override {
    const LayerSpec& layer = model_.layer(work_.layer);
    const bool backward = work_.backward && layer.kind != LayerKind::kHead;  // the head is visited once
    return absl::StrCat("step ", step_.value(), ", layer ", layer.name, backward ? ", backward" : ", forward");
  }
  const RelayStep& work() const { return work_; }

 private:
  const ModelSpec& model_;
  const StepId step_;
  const RelayStep& work_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_STEP_LABEL_H_
