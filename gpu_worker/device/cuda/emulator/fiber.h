#ifndef EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_FIBER_H_
#define EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_FIBER_H_

#include <functional>

#include "boost/context/fiber.hpp"

namespace eps::worker::cuda {

// A function with a stack of its own, which runs when it is resumed and stops where it yields.
//
// Threads: one, which begins it and resumes it to its end; the sanitizers are told of each switch
class Fiber {
 public:
  // Starts with the first Resume.
  explicit Fiber(std::function<void()> body);
  // `body` has returned, or never began.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // Runs `body` until it yields or returns. Not again after it has returned.
  void Resume();
  // Inside of `body`: back to who resumed it.
  void Yield();
  bool done() const { return done_; }

 private:
  void Enter();
  void Leave();

  std::function<void()> body_;
  bool begun_ = false, done_ = false;
  boost::context::fiber inner_, caller_;
  // What the sanitizers want to know of the two stacks.
  void* tsan_inner_ = nullptr;
  void* tsan_caller_ = nullptr;
  void* asan_caller_frames_ = nullptr;
  void* asan_inner_frames_ = nullptr;
  const void* stack_bottom_ = nullptr;
  const void* caller_bottom_ = nullptr;
  size_t caller_bytes_ = 0;
};

}  // namespace eps::worker::cuda

#endif  // EPS_GPU_WORKER_DEVICE_CUDA_EMULATOR_FIBER_H_
