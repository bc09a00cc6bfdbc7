#include "gpu_worker/profile/spread_tokens.h"

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "absl/types/span.h"
#include "gpu_worker/layers/layer_shape.h"
#include "gtest/gtest.h"

namespace eps::worker {
namespace {

struct alignas(64) Line {
  std::byte bytes[64];
};

// The arrays of a micro-batch, filled.
struct Filled {
  Filled(const LayerShape& shape, int64_t num_types) : memory(static_cast<size_t>(shape.token_bytes()) / sizeof(Line)) {
    FillSpreadTokens(
        shape, num_types,
        absl::MakeSpan(reinterpret_cast<std::byte*>(memory.data()), static_cast<size_t>(shape.token_bytes())));
  }
  std::vector<Line> memory;  // token_bytes() are whole lines
};

TEST(SpreadTokensTest, IdsAndTypesAreSpreadOverTheirTablesAndWithinThem) {
  LayerShape shape;
  shape.B = 4, shape.T = 500, shape.V = 50257;
  shape.has_types = shape.has_documents = true;
  const Filled filled(shape, 2);
  const TokenArrays arrays(shape, filled.memory.data());
  std::set<int32_t> tokens;
  int64_t in_upper_half = 0, of_type_1 = 0;
  for (int64_t i = 0; i < shape.M(); ++i) {
    ASSERT_TRUE(arrays.tokens[i] >= 0 && arrays.tokens[i] < shape.V) << arrays.tokens[i];
    ASSERT_TRUE(arrays.types[i] == 0 || arrays.types[i] == 1) << arrays.types[i];
    tokens.insert(arrays.tokens[i]);
    in_upper_half += arrays.tokens[i] > shape.V / 2 ? 1 : 0;
    of_type_1 += arrays.types[i];
    EXPECT_EQ(arrays.labels[i], 0);
    EXPECT_EQ(arrays.documents.first[i], 0);
    EXPECT_EQ(arrays.documents.end[i], 500);
  }
  // 2000 of 50257 drawn at random repeat some 40 times; halves differ by some 45.
  EXPECT_GT(tokens.size(), 1900u);
  EXPECT_NEAR(static_cast<double>(in_upper_half), 1000, 150);
  EXPECT_NEAR(static_cast<double>(of_type_1), 1000, 150);
}

TEST(SpreadTokensTest, ATableOfOneRowHasOneToken) {
  LayerShape shape;
  shape.B = 1, shape.T = 8, shape.V = 1;
  const Filled filled(shape, 0);
  const TokenArrays arrays(shape, filled.memory.data());
  for (int64_t i = 0; i < shape.M(); ++i) EXPECT_EQ(arrays.tokens[i], 0);
}

}  // namespace
}  // namespace eps::worker
