#ifndef EPS_GPU_WORKER_DEVICE_DROPOUT_PLAN_H_
#define EPS_GPU_WORKER_DEVICE_DROPOUT_PLAN_H_

#include <cmath>
#include <cstdint>

#include "common/numeric/philox.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// Dropout (kernels.h) with its numbers worked out, as every device's kernels want them.
struct DropoutPlan {
  bool on = false;
  PhiloxKey key;
  uint32_t drop_up_to = 0;  // an element is kept when its 32 bits are above: bits >= rate * 2^32
  float keep_scale = 1;     // 1 / (1 - rate)
  int64_t first_element = 0;
};

inline DropoutPlan PlanDropout(const Dropout& dropout) {
  DropoutPlan plan;
  plan.on = dropout.rate > 0;
  if (!plan.on) return plan;
  plan.key = dropout.key.philox();
  plan.drop_up_to = static_cast<uint32_t>(static_cast<uint64_t>(std::ceil(dropout.rate * 4294967296.0)) - 1);
  plan.keep_scale = static_cast<float>(1.0 / (1.0 - dropout.rate));
  plan.first_element = dropout.first_element;
  return plan;
}

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_DROPOUT_PLAN_H_
