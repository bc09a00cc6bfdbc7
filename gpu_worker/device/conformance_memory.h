#ifndef EPS_GPU_WORKER_DEVICE_CONFORMANCE_MEMORY_H_
#define EPS_GPU_WORKER_DEVICE_CONFORMANCE_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/tensor/dtype.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/reference_kernels.h"

namespace eps::worker {

// Hands out the arena piece by piece, and moves arrays in and out on the compute stream. What lies behind each piece is
// looked at in the end: a kernel that writes there, as behind scratch that is too small, fails the test. One at a time: each
// begins where the arena does.
class ConformanceMemory {
 public:
  explicit ConformanceMemory(Device& device) : device_(device) {}
  ~ConformanceMemory();
  ConformanceMemory(const ConformanceMemory&) = delete;
  ConformanceMemory& operator=(const ConformanceMemory&) = delete;

  // Uninitialised but for a pattern that turns up if it is read: NaN as fp32, bf16 and fp16.
  void* Alloc(int64_t num_bytes);
  template <typename T>
  T* Put(const std::vector<T>& values) {
    auto* to = static_cast<T*>(Alloc(static_cast<int64_t>(values.size() * sizeof(T))));
    Set(to, values);
    return to;
  }
  // In place of what lies there.
  template <typename T>
  void Set(void* to, const std::vector<T>& values) {
    SetBytes(to, absl::MakeConstSpan(reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)));
  }
  template <typename T>
  std::vector<T> Get(const void* from, int64_t n) {
    std::vector<T> values(static_cast<size_t>(n));
    GetBytes(absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(T)), from);
    return values;
  }
  // In the device's compute dtype; values must be representable in it (see Random).
  void* PutAct(const reference::Array& values);
  void SetAct(void* to, const reference::Array& values);
  void* AllocAct(int64_t n);
  reference::Array GetAct(const void* from, int64_t n);
  float* PutF32(const reference::Array& values);
  reference::Array GetF32(const void* from, int64_t n);

  Device& device() { return device_; }
  Dtype act() const { return device_.properties().compute_dtype; }

 private:
  void SetBytes(void* to, absl::Span<const std::byte> bytes);
  void GetBytes(absl::Span<std::byte> bytes, const void* from);

  // Behind what was handed out, up to the next piece.
  struct Guard {
    const std::byte* begin = nullptr;
    int64_t num_bytes = 0;
  };

  Device& device_;
  int64_t used_bytes_ = 0;
  std::vector<Guard> guards_;
};

// As a dtype of 16 bits, rounded as gradients are.
std::vector<uint16_t> ToBits(const reference::Array& values, Dtype dtype);

// Uniform in [-range, range], representable in every compute dtype.
reference::Array RandomArray(std::mt19937& random, int64_t n, double range = 1.0);

// Fails unless |got - want| <= tolerance for every element; a NaN fails.
void ExpectNear(const reference::Array& got, const reference::Array& want, const reference::Array& tolerance,
                const char* what);
void ExpectNear(const reference::Array& got, const reference::Array& want, double absolute, double relative,
                const char* what);

double Dot(const reference::Array& a, const reference::Array& b);

}  // namespace eps::worker

#endif  // EPS_GPU_WORKER_DEVICE_CONFORMANCE_MEMORY_H_
