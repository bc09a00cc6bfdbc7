#ifndef EPS_COMMON_NUMERIC_BIT_DIGEST_H_
#define EPS_COMMON_NUMERIC_BIT_DIGEST_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace eps {

// A 64-bit digest of the bits of `values`: -0 and 0 differ, and so do any two NaNs. It tells values apart that differ by
// mistake, not by design: it keeps nobody out. The same on every machine of one byte order, forever: docs/formats.md says
// it word by word.
//
// Cost: one pass, at about the speed of memory. Two values that differ in one word have different digests for certain;
// others are the same by chance once in 2^64.
uint64_t DigestBits(absl::Span<const float> values);
uint64_t DigestBytes(absl::Span<const std::byte> bytes);

// Of something in parts, from the digests of the parts in their order: who digested which part, and when, does not show.
uint64_t DigestOfDigests(absl::Span<const uint64_t> parts);

}  // namespace eps

#endif  // EPS_COMMON_NUMERIC_BIT_DIGEST_H_
