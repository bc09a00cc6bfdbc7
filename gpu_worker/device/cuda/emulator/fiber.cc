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

// Who switches, from right before until right after it.
thread_local Fiber* leaving = nullptr;

}  // namespace

Fiber::Fiber(std::function<void()> body) : body_(std::move(body)) {
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  const boost::context::stack_context stack = allocator.allocate();
  stack_bottom_ = static_cast<const char*>(stack.sp) - kStackBytes;
  stack_bytes_ = kStackBytes;
  const size_t shift = NextShift();
  at_ = boost::context::fiber(
      std::allocator_arg, boost::context::preallocated(static_cast<char*>(stack.sp) - shift, stack.size - shift, stack),
      allocator, [this](boost::context::fiber&& suspended) {
        AfterSwitch(std::move(suspended));
        body_();
        done_ = true;
        BeforeSwitch(*last_);
        return std::move(last_->at_);
      });
  if (__tsan_create_fiber != nullptr) tsan_ = __tsan_create_fiber(0);
}

Fiber::~Fiber() {
  EPS_CHECK(done_ || !begun_ || !body_);
  if (body_ && tsan_ != nullptr) __tsan_destroy_fiber(tsan_);
}

void Fiber::SwitchTo(Fiber& next) {
  next.begun_ = true;
  BeforeSwitch(next);
  AfterSwitch(std::move(next.at_).resume());
}

// On this fiber's stack.
void Fiber::BeforeSwitch(Fiber& next) {
  leaving = this;
  next.last_ = this;
#ifdef __SANITIZE_ADDRESS__
  // A fiber that is done never comes back: its frames are given up.
  __sanitizer_start_switch_fiber(done_ ? nullptr : &asan_frames_, next.stack_bottom_, next.stack_bytes_);
#endif
  if (__tsan_switch_to_fiber != nullptr) {
    if (!body_) tsan_ = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(next.tsan_, 0);
  }
}

// On this fiber's stack. `suspended`: who left, where it stands now; empty, if it is done.
void Fiber::AfterSwitch(boost::context::fiber suspended) {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(asan_frames_, &leaving->stack_bottom_, &leaving->stack_bytes_);
#endif
  leaving->at_ = std::move(suspended);
}

}  // namespace eps::worker::cuda
