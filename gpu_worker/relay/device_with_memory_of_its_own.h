#ifndef EPS_GPU_WORKER_RELAY_DEVICE_WITH_MEMORY_OF_ITS_OWN_H_
#define EPS_GPU_WORKER_RELAY_DEVICE_WITH_MEMORY_OF_ITS_OWN_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/kernels.h"

namespace eps::worker {

// A cpu device that says that the host cannot address its arena, as a GPU does.
class DeviceWithMemoryOfItsOwn : public Device {
 public:
  explicit DeviceWithMemoryOfItsOwn(std::unique_ptr<Device> device)
      : device_(std::move(device)), properties_(device_->properties()) {
    properties_.host_addressable = false;
  }
  const DeviceProperties& properties() const override { return properties_; }
  int64_t arena_bytes() const override { return device_->arena_bytes(); }
  absl::StatusOr<void*> Address(ArenaSpan span) override { return device_->Address(span); }
  int64_t arena_high_water_bytes() const override { return device_->arena_high_water_bytes(); }
  int64_t outside_bytes() const override { return device_->outside_bytes(); }
  Stream& stream(StreamId id) override { return device_->stream(id); }
  std::unique_ptr<Event> NewEvent() override { return device_->NewEvent(); }
  Kernels& kernels() override { return device_->kernels(); }
  void Recover() override { device_->Recover(); }

 private:
  std::unique_ptr<Device> device_;
  DeviceProperties properties_;
};

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_RELAY_DEVICE_WITH_MEMORY_OF_ITS_OWN_H_
