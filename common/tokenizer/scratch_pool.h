#ifndef EPS_COMMON_TOKENIZER_SCRATCH_POOL_H_
#define EPS_COMMON_TOKENIZER_SCRATCH_POOL_H_

#include <memory>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace eps {

// Working memory for calls that run at the same time: as many as ever ran at once, each used by one call at a time. What
// one has learned, such as a cache, the next call has.
//
// Threads: safe
template <typename T>
class ScratchPool {
 public:
  std::unique_ptr<T> Take() const {
    {
      MutexLock lock(mu_);
      if (!idle_.empty()) {
        std::unique_ptr<T> scratch = std::move(idle_.back());
        idle_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<T>();
  }

  void GiveBack(std::unique_ptr<T> scratch) const {
    MutexLock lock(mu_);
    idle_.push_back(std::move(scratch));
  }

 private:
  mutable Mutex mu_;
  mutable std::vector<std::unique_ptr<T>> idle_ ABSL_GUARDED_BY(mu_);
};

}  // namespace eps

#endif  // EPS_COMMON_TOKENIZER_SCRATCH_POOL_H_
