#include "common/tokenizer/byte_alphabet.h"

#include <array>

#include "common/base/utf8.h"

namespace eps {
namespace {

constexpr char32_t kFirstStandIn = 0x100;
constexpr int kNotThere = -1;
constexpr int kNumStandIns = 68;  // bytes 00-20, 7F-A0 and AD

constexpr bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

// By code point.
constexpr std::array<int, kFirstStandIn + kNumStandIns> MakeTable() {
  std::array<int, kFirstStandIn + kNumStandIns> table{};
  size_t next = kFirstStandIn;
  for (int byte = 0; byte < 256; ++byte) {
    const auto at = static_cast<size_t>(byte);
    table[at] = StandsForItself(byte) ? byte : kNotThere;
    if (!StandsForItself(byte)) table[next++] = byte;
  }
  return table;
}
constexpr auto kByteOf = MakeTable();

}  // namespace

std::optional<std::string> BytesOfSpelling(absl::string_view spelling) {
  std::string bytes;
  for (size_t at = 0; at < spelling.size();) {
    const char32_t c = NextCodePoint(spelling, at);
    if (c >= kByteOf.size() || kByteOf[c] == kNotThere) return std::nullopt;
    bytes += static_cast<char>(kByteOf[c]);
  }
  return bytes;
}

}  // namespace eps
