#include "common/numeric/fp8_block.h"

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/numeric/bf16.h"
#include "gtest/gtest.h"

namespace eps {
namespace {

constexpr Fp8Kind kKinds[] = {Fp8Kind::kSigned, Fp8Kind::kPositive};

uint8_t ExponentOf(Fp8Kind kind, float largest) { return Fp8SharedExponent(kind, std::bit_cast<uint32_t>(largest)); }

std::vector<float> Decoded(Fp8Kind kind, const std::vector<std::byte>& blocks, int64_t first, int64_t count) {
  std::vector<Bf16> values(static_cast<size_t>(count));
  DecodeFp8(kind, blocks.data(), first, absl::MakeSpan(values));
  std::vector<float> floats;
  for (const Bf16 value : values) floats.push_back(ToFloat(value));
  return floats;
}

std::vector<std::byte> Encoded(Fp8Kind kind, const std::vector<float>& values) {
  const int64_t blocks = (static_cast<int64_t>(values.size()) + kFp8BlockElems - 1) / kFp8BlockElems;
  std::vector<std::byte> bytes(static_cast<size_t>(blocks * kFp8BlockBytes));
  EncodeFp8(kind, values, bytes.data());
  return bytes;
}

TEST(Fp8BlockTest, TheExampleOfTheFormatsPage) {
  std::vector<float> values(32, 0.0f);
  values[0] = 1.0f;
  values[1] = -0.40625f;
  values[2] = 0x1p-20f;
  const std::vector<std::byte> first = Encoded(Fp8Kind::kSigned, values), second = Encoded(Fp8Kind::kPositive, values);
  EXPECT_EQ(first[32], std::byte{112});
  EXPECT_EQ(first[0], std::byte{0x78});
  EXPECT_EQ(first[1], std::byte{0xED});
  EXPECT_EQ(first[2], std::byte{0});
  EXPECT_EQ(second[32], std::byte{96});
  EXPECT_EQ(second[0], std::byte{0xF8});
  EXPECT_EQ(second[2], std::byte{0x58});
  EXPECT_EQ(second[3], std::byte{0});
  EXPECT_EQ(Decoded(Fp8Kind::kSigned, first, 0, 4), (std::vector<float>{1, -0.40625f, 0, 0}));
  EXPECT_EQ(Decoded(Fp8Kind::kPositive, second, 0, 4), (std::vector<float>{1, 0.40625f, 0x1p-20f, 0x1p-31f}));
}

TEST(Fp8BlockTest, IsRightOnAverageOverAllNoise) {
  for (const Fp8Kind kind : kKinds) {
    for (const float value : {1.0f, 1.9f, 0.3f, 0x1.2468p-10f}) {
      const uint8_t exponent = ExponentOf(kind, 1.9f);
      double sum = 0;
      for (uint32_t noise = 0; noise < 0x10000; ++noise) {
        sum += ToFloat(FromFp8(kind, ToFp8(kind, value, exponent, static_cast<uint16_t>(noise)), exponent));
      }
      // A unit is an eighth of the value or less; of its 20 bits that are dropped noise has the upper 16.
      EXPECT_NEAR(sum / 0x10000, value, value * 0x1p-19) << value;
    }
  }
}

// So a value that is the same for many steps stays, and a checkpoint holds what the memory does.
TEST(Fp8BlockTest, EveryCodeIsExactInBf16AndStaysWhateverTheNoise) {
  for (const Fp8Kind kind : kKinds) {
    for (const uint32_t exponent : {0u, 1u, 100u, 254u - Fp8ExponentSpan(kind)}) {
      const auto shared = static_cast<uint8_t>(exponent);
      for (int code = 0; code < 256; ++code) {
        const float value = ToFloat(FromFp8(kind, static_cast<uint8_t>(code), shared));
        for (const uint32_t noise : {0u, 0x8000u, 0xFFFFu}) {
          ASSERT_EQ(ToFp8(kind, value, shared, static_cast<uint16_t>(noise)), code) << exponent;
        }
      }
    }
  }
}

TEST(Fp8BlockTest, TheLargestValueNeverOverflowsAndUsesTheUpperHalfOfTheCodes) {
  for (const Fp8Kind kind : kKinds) {
    const int all = kind == Fp8Kind::kSigned ? 128 : 256;
    for (uint32_t bits = 0x20000000; bits < 0x7F000000; bits += 0x12345) {
      const auto value = std::bit_cast<float>(bits);
      const int code = ToFp8(kind, value, Fp8SharedExponent(kind, bits), 0xFFFF);
      ASSERT_LT(code, all) << value;
      ASSERT_GE(code, all - 16) << value;
    }
  }
}

TEST(Fp8BlockTest, WhatIsTooSmallIsZeroWhereItHasASignAndTheSmallestWhereItDivides) {
  const uint8_t of_signed = ExponentOf(Fp8Kind::kSigned, 1), of_positive = ExponentOf(Fp8Kind::kPositive, 1);
  for (const float value : {0.0f, 0x1p-16f, 0x1p-40f}) {
    EXPECT_EQ(ToFloat(FromFp8(Fp8Kind::kSigned, ToFp8(Fp8Kind::kSigned, -value, of_signed, 0xFFFF), of_signed)), 0);
  }
  for (const float value : {0.0f, 0x1p-32f, 0x1p-40f}) {
    EXPECT_EQ(ToFloat(FromFp8(Fp8Kind::kPositive, ToFp8(Fp8Kind::kPositive, value, of_positive, 0), of_positive)),
              0x1p-31f);
  }
}

TEST(Fp8BlockTest, ABlockOfZerosHasZeros) {
  for (const Fp8Kind kind : kKinds) {
    const std::vector<std::byte> blocks = Encoded(kind, std::vector<float>(32, 0.0f));
    EXPECT_EQ(blocks, std::vector<std::byte>(33, std::byte{0}));
    EXPECT_EQ(Decoded(kind, blocks, 0, 32), std::vector<float>(32, 0.0f));
  }
}

// Blocks whose values lie far apart, whose largest one was rounded down, with a last one that is not whole.
TEST(Fp8BlockTest, WhatIsReadOfBlocksIsWrittenAsItWas) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> size(-12, 6), sign(0, 1);
  for (const Fp8Kind kind : kKinds) {
    std::vector<float> values(32 * 200 + 7);
    for (float& value : values) {
      value = static_cast<float>(std::exp2(size(random)) * (kind == Fp8Kind::kSigned && sign(random) < 0 ? -1 : 1));
    }
    std::vector<std::byte> blocks = Encoded(kind, values);
    // As an update leaves them: with a shared exponent that is larger than these values alone would ask for.
    for (size_t block = 0; block < 200; block += 3) {
      auto& exponent = blocks[block * 33 + 32];
      for (int i = 0; i < 32; ++i) {
        std::byte& code = blocks[block * 33 + i];
        const auto magnitude = static_cast<int>(code) & (kind == Fp8Kind::kSigned ? 0x7F : 0xFF);
        if (magnitude >= 8) code = static_cast<std::byte>(static_cast<int>(code) - 8);
      }
      exponent = static_cast<std::byte>(static_cast<int>(exponent) + 1);
    }
    const std::vector<float> read = Decoded(kind, blocks, 0, static_cast<int64_t>(values.size()));
    const std::vector<std::byte> again = Encoded(kind, read);
    const std::vector<float> reread = Decoded(kind, again, 0, static_cast<int64_t>(values.size()));
    for (size_t i = 0; i < read.size(); ++i) {
      ASSERT_EQ(std::bit_cast<uint32_t>(reread[i]), std::bit_cast<uint32_t>(read[i])) << i;
    }
    EXPECT_EQ(Decoded(kind, blocks, 70, 9), std::vector<float>(read.begin() + 70, read.begin() + 79));
  }
}

TEST(Fp8BlockTest, InfinityStaysAndWhatRoundsBeyondTheLargestNumberIsInfinite) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(), kMax = std::numeric_limits<float>::max();
  for (const Fp8Kind kind : kKinds) {
    for (const float value : {kInfinity, kMax}) {
      std::vector<float> values(32, 1.0f);
      values[3] = value;
      values[4] = 0x1.Ep127f;
      const std::vector<std::byte> block = Encoded(kind, values);
      EXPECT_EQ(block[32], static_cast<std::byte>(255 - Fp8ExponentSpan(kind)));
      EXPECT_EQ(Decoded(kind, block, 3, 2), (std::vector<float>{kInfinity, 0x1.Ep127f}));
    }
  }
}

}  // namespace
}  // namespace eps
