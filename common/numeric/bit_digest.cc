#include "common/numeric/bit_digest.h"

#include <cstddef>
#include <cstring>

namespace eps {
namespace {

constexpr size_t kLanes = 8;  // independent of each other, so that the multiplications overlap
// Odd, so that multiplying by it loses nothing: 2^64 over the golden ratio, and 2^64 over the square root of two.
constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;
constexpr uint64_t kSeed = 0xb504f333f9de6485;

// For a fixed word a bijection of the lane, and for a fixed lane one of the word: a difference in one word is never lost.
// The second product is there for the high bits, which the first one moves nowhere: without it, two values whose signs are
// wrong could undo each other.
uint64_t Mix(uint64_t lane, uint64_t word) {
  const uint64_t product = (lane ^ word) * kMultiplier;
  return (product ^ (product >> 32)) * kMultiplier;
}

// A bijection in which every bit of the result depends on every bit of `lane`.
uint64_t Spread(uint64_t lane) {
  for (int round = 0; round < 3; ++round) lane = (lane ^ (lane >> 32)) * kMultiplier;
  return lane ^ (lane >> 32);
}

uint64_t Digest(const void* bytes, size_t num_bytes) {
  const char* at = static_cast<const char*>(bytes);
  uint64_t lanes[kLanes];
  for (size_t i = 0; i < kLanes; ++i) lanes[i] = kSeed + i * kMultiplier;
  size_t left = num_bytes;
  for (; left >= sizeof(lanes); left -= sizeof(lanes), at += sizeof(lanes)) {
    uint64_t words[kLanes];
    std::memcpy(words, at, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = Mix(lanes[i], words[i]);
  }
  if (left > 0) {
    uint64_t last[kLanes] = {};  // what is missing counts as zeros; the length tells it from zeros
    std::memcpy(last, at, left);
    for (size_t i = 0; i < kLanes; ++i) lanes[i] = Mix(lanes[i], last[i]);
  }
  uint64_t digest = kSeed ^ num_bytes;
  for (const uint64_t lane : lanes) digest = Spread(digest ^ Spread(lane));
  return digest;
}

}  // namespace

uint64_t DigestBits(absl::Span<const float> values) { return Digest(values.data(), values.size() * sizeof(float)); }

uint64_t DigestBytes(absl::Span<const std::byte> bytes) { return Digest(bytes.data(), bytes.size()); }

uint64_t DigestOfDigests(absl::Span<const uint64_t> parts) {
  return Digest(parts.data(), parts.size() * sizeof(uint64_t));
}

}  // namespace eps
