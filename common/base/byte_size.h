#ifndef EPS_COMMON_BASE_BYTE_SIZE_H_
#define EPS_COMMON_BASE_BYTE_SIZE_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace eps {

// "512MiB", "1.5 GiB", "65536" (bytes) -> bytes. Units: B KiB MiB GiB TiB, in any case.
// Errors: INVALID_ARGUMENT naming the text, and the units or the most that can be told
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

// 45088768 -> "43.0 MiB", to the nearest tenth.
std::string FormatByteSize(int64_t num_bytes);

// The same of what is the least that does (0 or more bytes), for people to copy: up to the next tenth, so that
// ParseByteSize makes no less of it.
std::string FormatLeastByteSize(int64_t num_bytes);

constexpr int64_t RoundUp(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace eps

#endif  // EPS_COMMON_BASE_BYTE_SIZE_H_
