#ifndef EPS_COMMON_BASE_LITTLE_ENDIAN_H_
#define EPS_COMMON_BASE_LITTLE_ENDIAN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

// Whole numbers of file formats and messages, whatever the processor's order and at any address.
namespace eps {

// bytes: sizeof(T) of them from `offset` on
template <typename T>
T LoadLittleEndian(absl::Span<const std::byte> bytes, size_t offset) {
  uint64_t bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) bits |= std::to_integer<uint64_t>(bytes[offset + i]) << (8 * i);
  return static_cast<T>(bits);
}
template <typename T>
T LoadLittleEndian(absl::string_view bytes, size_t offset) {
  return LoadLittleEndian<T>({reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()}, offset);
}

template <typename T>
void StoreLittleEndian(absl::Span<std::byte> bytes, size_t offset, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) bytes[offset + i] = static_cast<std::byte>(bits >> (8 * i) & 0xFF);
}

template <typename T>
void StoreLittleEndian(std::string& bytes, size_t offset, T value) {
  StoreLittleEndian(absl::Span<std::byte>(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()), offset, value);
}

}  // namespace eps

#endif  // EPS_COMMON_BASE_LITTLE_ENDIAN_H_
