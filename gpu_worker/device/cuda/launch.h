#ifndef EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_

#include <cstdint>
#include <functional>
#include <type_traits>

namespace eps::worker::cuda {

struct LaunchShape {
  int64_t blocks_x = 1;  // [1, 2^31)
  int64_t blocks_y = 1;  // [1, 65535]
  int threads = 256;     // of a block; a multiple of 32, at most 1024
  int shared_bytes = 0;  // dynamic shared memory of a block; at most kMaxSharedBytes
};

// What a block may use on every GPU that is built for: 99 KiB, the least of sm_80 to sm_120.
inline constexpr int kMaxSharedBytes = 99 * 1024;

struct KernelCall {
  const char* name = "";  // in errors
  LaunchShape shape;
  const void* function = nullptr;  // as cudaLaunchKernel takes it
  void** arguments = nullptr;      // one pointer for each parameter; valid during Launch
  // The same call for one thread of the grid, where kernels are compiled for the processor; empty on a GPU.
  std::function<void()> body;
};

// Where kernels are launched, in order: a stream of the GPU, or of the emulator that tests use.
//
// Errors:  a launch that fails becomes the stream's error; whoever launches does not see it
// Threads: one at a time
class KernelQueue {
 public:
  virtual ~KernelQueue() = default;
  virtual void Launch(const KernelCall& call) = 0;
};

// Enqueues kernel(args...) over the grid. A grid without blocks is left out.
template <typename... Params>
void Launch(KernelQueue& queue, const char* name, const LaunchShape& shape, void (*kernel)(Params...),
            std::type_identity_t<Params>... args) {
  if (shape.blocks_x == 0 || shape.blocks_y == 0) return;
  void* arguments[] = {static_cast<void*>(&args)...};
  KernelCall call = {.name = name,
                     .shape = shape,
                     .function = reinterpret_cast<const void*>(kernel),
                     .arguments = arguments,
                     .body = {}};
#ifndef __CUDACC__
  call.body = [kernel, args...] { kernel(args...); };
#endif
  queue.Launch(call);
}

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_LAUNCH_H_
