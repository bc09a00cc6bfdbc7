#include "common/tokenizer/unicode_text.h"

#include <cstdint>
#include <ios>

#include "gtest/gtest.h"

namespace eps {
namespace {

TEST(UnicodeTextTest, BertsControlCharactersAreThoseOfHuggingFacesRust) {
  for (const char32_t c : {U'\x00', U'\x1F', U'\x7F', U'\x85', U'\xAD', U'\x200B', U'\xFEFF', U'\xE000', U'\xE123',
                           U'\xF8FF', U'\xE0001', U'\xF0000', U'\x10FFFD'}) {
    EXPECT_TRUE(IsBertControl(c)) << std::hex << static_cast<uint32_t>(c);
  }
  // White space, letters, and what is not assigned.
  for (const char32_t c : {U'\t', U'\n', U'\r', U' ', U'a', U'\x4E00', U'\x378', U'\x5FF', U'\xFFFE', U'\xFDD0',
                           U'\x2FE0', U'\xE0080', U'\x10FFFF'}) {
    EXPECT_FALSE(IsBertControl(c)) << std::hex << static_cast<uint32_t>(c);
  }
}

}  // namespace
}  // namespace eps
