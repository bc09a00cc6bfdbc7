#include "common/formats/sparse_chunk.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/model_spec.h"

namespace eps {
namespace {

constexpr int64_t kSampledLines = 64;

bool IsZero(const std::byte* line) {
  uint64_t any = 0;
  for (int64_t at = 0; at < kLineBytes; at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, line + at, sizeof(word));
    any |= word;
  }
  return any == 0;
}

// Of kSampledLines from all over the chunk at least a quarter are zero.
bool LooksSparse(absl::Span<const std::byte> chunk) {
  const int64_t lines = static_cast<int64_t>(chunk.size()) / kLineBytes;
  const int64_t sampled = std::min(lines, kSampledLines);
  int64_t zero = 0;
  for (int64_t i = 0; i < sampled; ++i) zero += IsZero(chunk.data() + i * lines / sampled * kLineBytes) ? 1 : 0;
  return sampled > 0 && 4 * zero >= sampled;
}

bool TestBit(absl::Span<const std::byte> bits, int64_t line) {
  return (std::to_integer<unsigned>(bits[line / 8]) >> (line % 8) & 1u) != 0;
}

}  // namespace

std::optional<std::vector<std::byte>> PackSparseChunk(absl::Span<const std::byte> chunk) {
  EPS_CHECK(chunk.size() % kLineBytes == 0);
  if (!LooksSparse(chunk)) return std::nullopt;
  const int64_t lines = static_cast<int64_t>(chunk.size()) / kLineBytes;
  const int64_t most_bytes = static_cast<int64_t>(chunk.size()) / 4 * 3;
  int64_t packed_bytes = LineBitsBytes(static_cast<int64_t>(chunk.size()));
  if (packed_bytes > most_bytes) return std::nullopt;
  std::vector<std::byte> packed(most_bytes);
  for (int64_t line = 0; line < lines; ++line) {
    const std::byte* from = chunk.data() + line * kLineBytes;
    if (IsZero(from)) continue;
    if (packed_bytes + kLineBytes > most_bytes) return std::nullopt;
    packed[line / 8] |= std::byte{1} << (line % 8);
    std::memcpy(&packed[packed_bytes], from, kLineBytes);
    packed_bytes += kLineBytes;
  }
  packed.resize(packed_bytes);
  return packed;
}

absl::Status UnpackSparseChunk(absl::Span<std::byte> chunk, int64_t packed_bytes) {
  constexpr int64_t kMostLines = kChunkElems * 4 / kLineBytes;
  const int64_t num_bytes = static_cast<int64_t>(chunk.size()), lines = num_bytes / kLineBytes;
  EPS_CHECK(num_bytes > 0 && num_bytes % kLineBytes == 0 && lines <= kMostLines);
  const int64_t bits_bytes = LineBitsBytes(num_bytes);
  if (packed_bytes < bits_bytes || packed_bytes > num_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("sparse chunk: ", packed_bytes, " bytes, want ", bits_bytes, " to ",
                                                   num_bytes, " for a chunk of ", num_bytes));
  }
  // Apart, as unpacking overwrites them.
  std::array<std::byte, LineBitsBytes(kChunkElems * 4)> all_bits;
  const auto bits = absl::MakeSpan(all_bits).subspan(0, bits_bytes);
  std::memcpy(bits.data(), chunk.data() + num_bytes - packed_bytes, bits_bytes);
  int64_t set = 0;
  for (const std::byte byte : bits) set += std::popcount(std::to_integer<unsigned>(byte));
  if (bits_bytes + set * kLineBytes != packed_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("sparse chunk: ", packed_bytes, " bytes, want ",
                                                   bits_bytes + set * kLineBytes, " for the ", set,
                                                   " lines whose bits are set"));
  }
  for (int64_t line = lines; line < bits_bytes * 8; ++line) {
    if (TestBit(bits, line)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sparse chunk: bit ", line, " is set, want zeros behind the chunk's ", lines, " lines"));
    }
  }
  // In place, from the front: the packed line that is read next never lies before the place that is written, as between the
  // two are the lines of zeros that are still to come.
  const std::byte* from = chunk.data() + num_bytes - set * kLineBytes;
  for (int64_t line = 0; line < lines; ++line) {
    std::byte* to = chunk.data() + line * kLineBytes;
    if (!TestBit(bits, line)) {
      std::memset(to, 0, kLineBytes);
      continue;
    }
    if (from != to) std::memcpy(to, from, kLineBytes);
    from += kLineBytes;
  }
  return absl::OkStatus();
}

}  // namespace eps
