// What orders one thread's callback of a gRPC call behind another thread's: told to ThreadSanitizer, which cannot see into
// Debian's libgrpc.so and libabsl_synchronization.so. These functions take the place of theirs in the whole program, say
// what they order, and call them.
//
//   a lock      what is done under it comes before what is done under it next
//   a call      what is done before a batch of operations is started comes before what is done once a batch has ended,
//               which gRPC's headers follow with grpc_call_unref

#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

extern "C" {

void __tsan_acquire(void* address);
void __tsan_release(void* address);

#define EPS_NOT_LOOKED_AT __attribute__((no_sanitize("thread"), noinline))
// The function of this name that comes next: the library's own.
#define EPS_NEXT(function, name)                                     \
  static std::atomic<decltype(&function)> found{nullptr};            \
  auto next = found.load(std::memory_order_relaxed);                 \
  if (next == nullptr) {                                             \
    next = reinterpret_cast<decltype(next)>(dlsym(RTLD_NEXT, name)); \
    found.store(next, std::memory_order_relaxed);                    \
  }

// ---- locks: gpr_mu, absl::Mutex and what waits on them ----

struct TsanTime {  // absl::Time and absl::Duration as they are passed
  int64_t high;
  uint32_t low;
};

EPS_NOT_LOOKED_AT void gpr_mu_lock(void* mutex) {
  EPS_NEXT(gpr_mu_lock, "gpr_mu_lock")
  next(mutex);
  __tsan_acquire(mutex);
}
EPS_NOT_LOOKED_AT int gpr_mu_trylock(void* mutex) {
  EPS_NEXT(gpr_mu_trylock, "gpr_mu_trylock")
  const int locked = next(mutex);
  if (locked != 0) __tsan_acquire(mutex);
  return locked;
}
EPS_NOT_LOOKED_AT void gpr_mu_unlock(void* mutex) {
  EPS_NEXT(gpr_mu_unlock, "gpr_mu_unlock")
  __tsan_release(mutex);
  next(mutex);
}

#define EPS_MUTEX "_ZN4absl7debian35Mutex"
#define EPS_COND_VAR "_ZN4absl7debian37CondVar"
void EpsMutexLock(void* mutex) asm(EPS_MUTEX "4LockEv");
bool EpsMutexTryLock(void* mutex) asm(EPS_MUTEX "7TryLockEv");
void EpsMutexUnlock(void* mutex) asm(EPS_MUTEX "6UnlockEv");
void EpsCondVarWait(void* changed, void* mutex) asm(EPS_COND_VAR "4WaitEPNS0_5MutexE");
bool EpsCondVarWaitWithTimeout(void* changed, void* mutex,
                               TsanTime timeout) asm(EPS_COND_VAR "15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
bool EpsCondVarWaitWithDeadline(void* changed, void* mutex,
                                TsanTime deadline) asm(EPS_COND_VAR "16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");

EPS_NOT_LOOKED_AT void EpsMutexLock(void* mutex) {
  EPS_NEXT(EpsMutexLock, EPS_MUTEX "4LockEv")
  next(mutex);
  __tsan_acquire(mutex);
}
EPS_NOT_LOOKED_AT bool EpsMutexTryLock(void* mutex) {
  EPS_NEXT(EpsMutexTryLock, EPS_MUTEX "7TryLockEv")
  const bool locked = next(mutex);
  if (locked) __tsan_acquire(mutex);
  return locked;
}
EPS_NOT_LOOKED_AT void EpsMutexUnlock(void* mutex) {
  EPS_NEXT(EpsMutexUnlock, EPS_MUTEX "6UnlockEv")
  __tsan_release(mutex);
  next(mutex);
}
EPS_NOT_LOOKED_AT void EpsCondVarWait(void* changed, void* mutex) {
  EPS_NEXT(EpsCondVarWait, EPS_COND_VAR "4WaitEPNS0_5MutexE")
  __tsan_release(mutex);
  next(changed, mutex);
  __tsan_acquire(mutex);
}
EPS_NOT_LOOKED_AT bool EpsCondVarWaitWithTimeout(void* changed, void* mutex, TsanTime timeout) {
  EPS_NEXT(EpsCondVarWaitWithTimeout, EPS_COND_VAR "15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE")
  __tsan_release(mutex);
  const bool late = next(changed, mutex, timeout);
  __tsan_acquire(mutex);
  return late;
}
EPS_NOT_LOOKED_AT bool EpsCondVarWaitWithDeadline(void* changed, void* mutex, TsanTime deadline) {
  EPS_NEXT(EpsCondVarWaitWithDeadline, EPS_COND_VAR "16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE")
  __tsan_release(mutex);
  const bool late = next(changed, mutex, deadline);
  __tsan_acquire(mutex);
  return late;
}

// ---- calls ----

EPS_NOT_LOOKED_AT int grpc_call_start_batch(void* call, const void* operations, size_t num_operations, void* tag,
                                            void* reserved) {
  EPS_NEXT(grpc_call_start_batch, "grpc_call_start_batch")
  __tsan_release(call);
  return next(call, operations, num_operations, tag, reserved);
}
EPS_NOT_LOOKED_AT void grpc_call_unref(void* call) {
  EPS_NEXT(grpc_call_unref, "grpc_call_unref")
  __tsan_acquire(call);
  next(call);
}

}  // extern "C"
