#include "common/schedule/sample_order.h"

#include "common/base/status_macros.h"
#include "common/numeric/philox.h"

namespace eps {
namespace {

// Eight rounds of a keyed mixing function: plenty for a shuffle, and a sample is looked up once per
// step.
constexpr int kRounds = 8;

// A keyed bijection of [0, 2^(2 * half_bits)): a balanced Feistel network (Luby and Rackoff, 1988).
class Feistel {
 public:
  Feistel(int half_bits, uint64_t key) : half_bits_(half_bits), mask_((uint64_t{1} << half_bits) - 1), key_(key) {}

  uint64_t operator()(uint64_t x) const {
    uint64_t left = x >> half_bits_, right = x & mask_;
    for (uint64_t round = 0; round < kRounds; ++round) {
      const uint64_t next = left ^ (Mix64(Mix64(key_ + round) ^ right) & mask_);
      left = right;
      right = next;
    }
    return left << half_bits_ | right;
  }

 private:
  int half_bits_;
  uint64_t mask_;
  uint64_t key_;
};

// The least half width whose domain holds `count`. At least 3: over fewer bits a Feistel network
// reaches too few of the permutations.
int HalfBits(uint64_t count) {
  int half_bits = 3;
  while (half_bits < 32 && uint64_t{1} << (2 * half_bits) < count) ++half_bits;
  return half_bits;
}

}  // namespace

int64_t SampleOrder::SampleAt(int64_t place) const {
  EPS_CHECK(num_samples_ >= 1 && place >= 0);
  const int64_t epoch = place / num_samples_, within = place % num_samples_;
  if (!shuffled_ || num_samples_ == 1) return within;
  const auto count = static_cast<uint64_t>(num_samples_);
  const Feistel permute(HalfBits(count), Mix64(Mix64(seed_) ^ static_cast<uint64_t>(epoch)));
  // Cycle walking: what falls outside is permuted again. The domain is less than 4 times `count`
  // (but for fewer than 17 samples), so that takes fewer than 4 turns on average; it ends, because
  // the walk stays on one cycle, which starts inside.
  uint64_t x = static_cast<uint64_t>(within);
  do {
    x = permute(x);
  } while (x >= count);
  return static_cast<int64_t>(x);
}

}  // namespace eps
