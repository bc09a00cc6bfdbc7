#ifndef EPS_GPU_WORKER_DEVICE_CUDA_DEVICE_DROPOUT_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_DEVICE_DROPOUT_H_

#include <array>
#include <cstdint>
#include <tuple>

#include "common/numeric/philox.h"

namespace eps::worker::cuda {

// A DropoutPlan as kernels are launched with it. The key, which is another in each step, lies in the device's memory: so the
// same launch in the next step is equal to this one, and may be part of a graph (compute_graphs.h).
struct DeviceDropout {
  bool on = false;
  const PhiloxKey* key = nullptr;  // of the device; null where it is off
  uint32_t drop_up_to = 0;
  float keep_scale = 1;
  int64_t first_element = 0;

  friend bool operator==(const DeviceDropout&, const DeviceDropout&) = default;
};

// Keys that a launch can bring along.
inline constexpr int kDropoutKeysOfPack = 16;
struct DropoutKeyPack {
  std::array<PhiloxKey, kDropoutKeysOfPack> keys;
  int count = 0;

  friend bool operator==(const DropoutKeyPack&, const DropoutKeyPack&) = default;
};

// For HashOfArgument of launch.h: enough to tell apart.
inline auto FieldsOf(const DeviceDropout& dropout) {
  return std::tie(dropout.key, dropout.drop_up_to, dropout.first_element);
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_DEVICE_DROPOUT_H_
