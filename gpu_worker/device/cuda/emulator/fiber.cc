#include "gpu_worker/device/cuda/emulator/fiber.h"

#include <cstddef>
#include <functional>
#include <memory>
#include <utility>

#include "boost/context/fiber.hpp"
#include "boost/context/protected_fixedsize_stack.hpp"
#include "common/base/status_macros.h"

#ifdef __SANITIZE_ADDRESS__
#include "sanitizer/common_interface_defs.h"
#endif
#ifdef __SANITIZE_THREAD__
#include "sanitizer/tsan_interface.h"
#endif

namespace eps::worker::cuda {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  const boost::context::stack_context stack = allocator.allocate();
  stack_bottom_ = static_cast<const char*>(stack.sp) - kStackBytes;
  inner_ = boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                                 allocator, [this](boost::context::fiber&& caller) {
                                   caller_ = std::move(caller);
                                   Enter();
                                   body_();
                                   done_ = true;
                                   Leave();
                                   return std::move(caller_);
                                 });
#ifdef __SANITIZE_THREAD__
  tsan_inner_ = __tsan_create_fiber(0);
#endif
}

Fiber::~Fiber() {
  EPS_CHECK(done_ || !begun_);
#ifdef __SANITIZE_THREAD__
  __tsan_destroy_fiber(tsan_inner_);
#endif
}

void Fiber::Resume() {
  begun_ = true;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&asan_caller_frames_, stack_bottom_, kStackBytes);
#endif
#ifdef __SANITIZE_THREAD__
  tsan_caller_ = __tsan_get_current_fiber();
  __tsan_switch_to_fiber(tsan_inner_, 0);
#endif
  inner_ = std::move(inner_).resume();
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(asan_caller_frames_, nullptr, nullptr);
#endif
}

void Fiber::Yield() {
  Leave();
  caller_ = std::move(caller_).resume();
  Enter();
}

// On the fiber's stack, right after a switch to it.
void Fiber::Enter() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(asan_inner_frames_, &caller_bottom_, &caller_bytes_);
#endif
}

// On the fiber's stack, right before a switch from it.
void Fiber::Leave() {
#ifdef __SANITIZE_ADDRESS__
  // A fiber that is done never comes back: its frames are given up.
  __sanitizer_start_switch_fiber(done_ ? nullptr : &asan_inner_frames_, caller_bottom_, caller_bytes_);
#endif
#ifdef __SANITIZE_THREAD__
  __tsan_switch_to_fiber(tsan_caller_, 0);
#endif
}

}  // namespace eps::worker::cuda
