#ifndef EPS_COMMON_SCHEDULE_SAMPLE_ORDER_H_
#define EPS_COMMON_SCHEDULE_SAMPLE_ORDER_H_

#include <cstdint>

namespace eps {

// Which sample stands at which place of the run's endless sequence of samples.
//
// Place p of epoch e = p / num_samples. SEQUENTIAL: sample p mod num_samples. SHUFFLED: a bijection of
// [0, num_samples) keyed by (seed, e), in O(1) memory (a Feistel network with cycle walking), so that a
// data set of any length is shuffled whole. Step s takes places [s * B, (s + 1) * B) for B sequences per
// step; vnode v takes the v-th equal part of them, its micro-batches in order.
class SampleOrder {
 public:
  // num_samples >= 1.
  SampleOrder(int64_t num_samples, bool shuffled, uint64_t seed)
      : num_samples_(num_samples), shuffled_(shuffled), seed_(seed) {}

  int64_t SampleAt(int64_t place) const;

 private:
  int64_t num_samples_;
  bool shuffled_;
  uint64_t seed_;
};

}  // namespace eps

#endif  // EPS_COMMON_SCHEDULE_SAMPLE_ORDER_H_
