#ifndef EPS_GPU_WORKER_DEVICE_DEVICE_CONFORMANCE_H_
#define EPS_GPU_WORKER_DEVICE_DEVICE_CONFORMANCE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"
#include "gtest/gtest.h"

namespace eps::worker {

// What every device must do; written once. A new kind of device gets its tests by
//
//   INSTANTIATE_TEST_SUITE_P(Cpu, DeviceConformanceTest, ::testing::Values(ConformanceParam{...}),
//                            [](const auto& info) { return info.param.name; });
using DeviceFactory = std::function<absl::StatusOr<std::unique_ptr<Device>>(int64_t arena_bytes)>;

struct ConformanceParam {
  std::string name;
  DeviceFactory make;
  KernelSizes sizes;
  // Devices that must give the same bits as `make`'s: other numbers of threads.
  std::vector<DeviceFactory> same_bits;
  // Attention masks within tiles of so many positions in a way that may let a NaN through, as a library's kernel may: by
  // adding to scores and not by choosing.
  int64_t loose_mask_tile = 1;

  friend void PrintTo(const ConformanceParam& param, std::ostream* out) { *out << param.name; }
};

class DeviceConformanceTest : public ::testing::TestWithParam<ConformanceParam> {
 protected:
  void SetUp() override;
  void TearDown() override;
  Device& device() { return *device_; }

 private:
  std::unique_ptr<Device> device_;
};

// Beside it, for devices that are fast: an emulator would take hours.
class LargeConformanceTest : public DeviceConformanceTest {};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_DEVICE_CONFORMANCE_H_
