#include "gpu_worker/device/cuda/emulator/fiber.h"

#include <atomic>
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

// There when the program is linked with ThreadSanitizer. This file is compiled without it (BUILD): between a switch that
// it is told of and the switch itself, what runs would be taken for the other stack's.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming)
extern "C" {
[[gnu::weak]] void* __tsan_get_current_fiber();
[[gnu::weak]] void* __tsan_create_fiber(unsigned flags);
[[gnu::weak]] void __tsan_destroy_fiber(void* fiber);
[[gnu::weak]] void __tsan_switch_to_fiber(void* fiber, unsigned flags);
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace eps::worker::cuda {
namespace {

constexpr size_t kStackBytes = size_t{128} << 10;
// Stacks begin at different offsets of a page: at the same one, what fibers save when they yield would lie in the same
// few sets of the processor's caches, and every switch would miss them.
constexpr size_t kStackShift = 192, kStackShifts = 20;

size_t NextShift() {
  static std::atomic<size_t> next{0};
  return next.fetch_add(1) % kStackShifts * kStackShift;
}

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  const boost::context::stack_context stack = allocator.allocate();
  stack_bottom_ = static_cast<const char*>(stack.sp) - kStackBytes;
  const size_t shift = NextShift();
  inner_ = boost::context::fiber(
      std::allocator_arg, boost::context::preallocated(static_cast<char*>(stack.sp) - shift, stack.size - shift, stack),
      allocator, [this](boost::context::fiber&& caller) {
        caller_ = std::move(caller);
        Enter();
        body_();
        done_ = true;
        Leave();
        return std::move(caller_);
      });
  if (__tsan_create_fiber != nullptr) tsan_inner_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  EPS_CHECK(done_ || !begun_);
  if (tsan_inner_ != nullptr) __tsan_destroy_fiber(tsan_inner_);
}

void Fiber::Resume() {
  begun_ = true;
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_start_switch_fiber(&asan_caller_frames_, stack_bottom_, kStackBytes);
#endif
  if (tsan_inner_ != nullptr) {
    tsan_caller_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(tsan_inner_, 0);
  }
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
  if (tsan_inner_ != nullptr) __tsan_switch_to_fiber(tsan_caller_, 0);
}

}  // namespace eps::worker::cuda
