#include "common/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace eps {
namespace {

constexpr char32_t kReplacement = 0xFFFD;

// What may follow a first byte: how many bytes, and the range of the first of them.
struct Lead {
  int num_more;
  uint8_t low, high;
};

// Unicode 15, table 3-7. num_more is -1 for what begins nothing.
Lead LeadOf(uint8_t first) {
  if (first < 0x80) return {0, 0, 0};
  if (first < 0xC2 || first > 0xF4) return {-1, 0, 0};
  if (first < 0xE0) return {1, 0x80, 0xBF};
  if (first == 0xE0) return {2, 0xA0, 0xBF};
  if (first == 0xED) return {2, 0x80, 0x9F};
  if (first < 0xF0) return {2, 0x80, 0xBF};
  if (first == 0xF0) return {3, 0x90, 0xBF};
  if (first == 0xF4) return {3, 0x80, 0x8F};
  return {3, 0x80, 0xBF};
}

// How far `text` is well-formed.
size_t WellFormedPrefix(absl::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    uint64_t eight;
    if (at + sizeof(eight) <= text.size()) {
      std::memcpy(&eight, text.data() + at, sizeof(eight));
      if ((eight & 0x8080808080808080u) == 0) {
        at += sizeof(eight);
        continue;
      }
    }
    const Utf8Step step = FirstOf(text.substr(at));
    if (!step.is_well_formed) return at;
    at += step.num_bytes;
  }
  return at;
}

}  // namespace

Utf8Step FirstOf(absl::string_view text) {
  const auto first = static_cast<uint8_t>(text[0]);
  const Lead lead = LeadOf(first);
  if (lead.num_more == 0) return {1, first, true};
  if (lead.num_more < 0) return {1, kReplacement, false};
  char32_t code_point = first & (0x3F >> lead.num_more);
  for (int i = 1; i <= lead.num_more; ++i) {
    const auto at = static_cast<size_t>(i);
    if (at == text.size()) return {at, kReplacement, false};
    const auto byte = static_cast<uint8_t>(text[at]);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) return {at, kReplacement, false};
    code_point = code_point << 6 | (byte & 0x3F);
  }
  return {static_cast<size_t>(lead.num_more) + 1, code_point, true};
}

char32_t NextCodePoint(absl::string_view text, size_t& at) {
  const Utf8Step step = FirstOf(text.substr(at));
  at += step.num_bytes;
  return step.code_point;
}

void AppendUtf8(char32_t code_point, std::string& out) {
  const auto continuation = [](char32_t bits) { return static_cast<char>(0x80 | (bits & 0x3F)); };
  if (code_point < 0x80) {
    out += static_cast<char>(code_point);
  } else if (code_point < 0x800) {
    out += {static_cast<char>(0xC0 | code_point >> 6), continuation(code_point)};
  } else if (code_point < 0x10000) {
    out += {static_cast<char>(0xE0 | code_point >> 12), continuation(code_point >> 6), continuation(code_point)};
  } else {
    out += {static_cast<char>(0xF0 | code_point >> 18), continuation(code_point >> 12), continuation(code_point >> 6),
            continuation(code_point)};
  }
}

bool IsWellFormed(absl::string_view text) { return WellFormedPrefix(text) == text.size(); }

absl::string_view WellFormed(absl::string_view text, std::string& copy) {
  size_t good = WellFormedPrefix(text);
  if (good == text.size()) return text;
  copy.clear();
  while (good < text.size()) {
    copy.append(text.data(), good);
    AppendUtf8(kReplacement, copy);
    text.remove_prefix(good + FirstOf(text.substr(good)).num_bytes);
    good = WellFormedPrefix(text);
  }
  copy.append(text.data(), text.size());
  return copy;
}

}  // namespace eps
