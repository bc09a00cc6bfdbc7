#include "common/base/stream_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

namespace eps {

void StreamCopy(std::byte* destination, const std::byte* source, size_t num_bytes) {
#ifdef __SSE2__
  constexpr size_t kLine = 64;
  // Only whole lines of the destination go past the cache.
  const size_t head = std::min(num_bytes, (kLine - reinterpret_cast<uintptr_t>(destination) % kLine) % kLine);
  std::memcpy(destination, source, head);
  size_t at = head;
  for (; at + kLine <= num_bytes; at += kLine) {
    const auto* from = reinterpret_cast<const __m128i*>(source + at);
    auto* to = reinterpret_cast<__m128i*>(destination + at);
    const __m128i a = _mm_loadu_si128(from), b = _mm_loadu_si128(from + 1);
    const __m128i c = _mm_loadu_si128(from + 2), d = _mm_loadu_si128(from + 3);
    _mm_stream_si128(to, a);
    _mm_stream_si128(to + 1, b);
    _mm_stream_si128(to + 2, c);
    _mm_stream_si128(to + 3, d);
  }
  std::memcpy(destination + at, source + at, num_bytes - at);
  _mm_sfence();  // such stores are weakly ordered: whoever is told that the copy is done must see it
#else
  std::memcpy(destination, source, num_bytes);
#endif
}

}  // namespace eps
