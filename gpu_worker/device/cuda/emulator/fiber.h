#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_FIBER_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_FIBER_H_

#include <cstddef>
#include <functional>

#include "boost/context/fiber.hpp"

namespace eps::worker::cuda {

// A stack, and where on it its function stands. Fibers switch to each other without a scheduler between them: the switch is
// what an emulated kernel spends most of its time on.
//
// Threads: one, for all fibers that switch to each other; the sanitizers are told of each switch
class Fiber {
 public:
  // The stack that the thread runs on already.
  Fiber() = default;
  // A new one, on which `body` runs from the first switch to it on. When it returns, who switched to it last goes on.
  explicit Fiber(std::function<void()> body);
  // `body` has returned, or never began.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // From this fiber, which is the one that runs, to `next`, whose body has not returned. Returns when another one switches
  // back to this one.
  void SwitchTo(Fiber& next);

 private:
  void BeforeSwitch(Fiber& next);
  void AfterSwitch(boost::context::fiber suspended);

  std::function<void()> body_;  // of a stack of its own
  bool begun_ = false, done_ = false;
  boost::context::fiber at_;  // where it stands, while another one runs
  Fiber* last_ = nullptr;     // that switched to it
  // What the sanitizers want to know.
  void* tsan_ = nullptr;
  void* asan_frames_ = nullptr;
  const void* stack_bottom_ = nullptr;
  size_t stack_bytes_ = 0;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_FIBER_H_
