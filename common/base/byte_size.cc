#include "common/base/byte_size.h"

#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace eps {
namespace {

struct Unit {
  absl::string_view name;
  int shift;
};
constexpr std::array<Unit, 5> kUnits = {{{"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}}};

absl::Status BadByteSize(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("\"", text, "\" is no size: write a number and a unit (B KiB MiB GiB TiB), like 512MiB"));
}

absl::Status TooLarge(absl::string_view text) {
  return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is too large: less than ", (INT64_MAX >> 40) + 1,
                                                 "TiB, which is 2^63 bytes, can be told"));
}

bool IsNumberPart(char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.'; }

// In which a size is short.
size_t ShortUnit(double magnitude) {
  size_t unit = 0;
  // 1023.95 KiB would be shown as 1024.0 KiB.
  while (unit + 1 < kUnits.size() && std::ldexp(magnitude, -kUnits[unit].shift) >= (unit == 0 ? 1024.0 : 1023.95)) {
    ++unit;
  }
  return unit;
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  const absl::string_view trimmed = absl::StripAsciiWhitespace(text);
  size_t split = 0;
  while (split < trimmed.size() && IsNumberPart(trimmed[split])) ++split;
  const absl::string_view number = trimmed.substr(0, split);
  const absl::string_view unit = absl::StripAsciiWhitespace(trimmed.substr(split));
  for (const Unit& known : kUnits) {
    if (!absl::EqualsIgnoreCase(unit, known.name) && !(unit.empty() && known.shift == 0)) continue;
    // Whole numbers are taken exactly: a double would round above 2^53 bytes.
    if (int64_t whole; absl::SimpleAtoi(number, &whole)) {
      if (whole > (INT64_MAX >> known.shift)) return TooLarge(text);
      return whole << known.shift;
    }
    double value;
    if (!absl::SimpleAtod(number, &value)) break;
    const double num_bytes = std::floor(std::ldexp(value, known.shift));
    if (!(num_bytes < 0x1p63)) return TooLarge(text);
    return static_cast<int64_t>(num_bytes);
  }
  return BadByteSize(text);
}

std::string FormatByteSize(int64_t num_bytes) {
  const double magnitude = std::fabs(static_cast<double>(num_bytes));
  const size_t unit = ShortUnit(magnitude);
  if (unit == 0) return absl::StrCat(num_bytes, " B");
  return absl::StrFormat("%.1f %s", std::ldexp(static_cast<double>(num_bytes), -kUnits[unit].shift), kUnits[unit].name);
}

std::string FormatLeastByteSize(int64_t num_bytes) {
  const size_t unit = ShortUnit(static_cast<double>(num_bytes));
  if (unit == 0) return absl::StrCat(num_bytes, " B");
  const int64_t tenths =
      static_cast<int64_t>(std::ceil(std::ldexp(static_cast<double>(num_bytes) * 10, -kUnits[unit].shift)));
  const auto text = [unit](int64_t of) { return absl::StrFormat("%d.%d %s", of / 10, of % 10, kUnits[unit].name); };
  // A tenth as it is read may be a little less than it says.
  const absl::StatusOr<int64_t> read = ParseByteSize(text(tenths));
  return text(read.ok() && *read < num_bytes ? tenths + 1 : tenths);
}

}  // namespace eps
