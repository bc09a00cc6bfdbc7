#ifndef EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace eps::worker::cuda {

struct LaunchShape {
  int64_t blocks_x = 1;  // [1, 2^31)
  int64_t blocks_y = 1;  // [1, 65535]
  int threads = 256;     // of a block; a multiple of 32, at most 1024
  int shared_bytes = 0;  // dynamic shared memory of a block; at most kMaxSharedBytes
};

// What a block may ask for on every GPU that is built for: 99 KiB, the least of sm_80 to sm_120, of which 2 KiB are for
// the kernel's static shared memory.
inline constexpr int kMaxSharedBytes = 97 * 1024;
inline constexpr int64_t kMaxBlocksX = (int64_t{1} << 31) - 1;
inline constexpr int64_t kMaxBlocksY = 65535;

struct KernelCall {
  const char* name = "";  // in errors
  LaunchShape shape;
  const void* function = nullptr;  // as cudaLaunchKernel takes it
  std::vector<void*> arguments;    // one for each parameter, into what `owner` keeps
  std::shared_ptr<void> owner;
  // The same call for one thread of the grid, where kernels are compiled for the processor; empty on a GPU.
  std::function<void()> body;
};

// What our own kernels are launched into, in order: the compute stream.
//
// Errors:  a launch that fails becomes the stream's error; whoever launches does not see it
// Threads: one at a time
class KernelQueue {
 public:
  virtual ~KernelQueue() = default;
  virtual void Launch(KernelCall call) = 0;
};

// Enqueues kernel(args...) over the grid, whose shape is within bounds. A grid without blocks is left out.
template <typename... Params>
void Launch(KernelQueue& queue, const char* name, const LaunchShape& shape, void (*kernel)(Params...),
            std::type_identity_t<Params>... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return;
  const auto owned = std::make_shared<std::tuple<Params...>>(args...);
  KernelCall call;
  call.name = name;
  call.shape = shape;
  call.function = reinterpret_cast<const void*>(kernel);
  call.arguments = std::apply([](auto&... each) { return std::vector<void*>{static_cast<void*>(&each)...}; }, *owned);
  call.owner = owned;
#ifndef __CUDACC__
  call.body = [kernel, owned] { std::apply(kernel, *owned); };
#endif
  queue.Launch(std::move(call));
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_
